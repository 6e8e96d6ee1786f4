"""A unit of a batch, as the inner loop gets it, and what units report."""

from __future__ import annotations

import math
from typing import Any, Tuple

from .joining import Settings


def _scalar(place: int, value: Any) -> Any:
    """A number that a unit reports: also a tensor of one, whose graph is not needed for it.

    That of an accelerator is read with the task: its unit must not wait for it.
    """
    if not getattr(value, "is_cpu", True) and value.numel() == 1:
        return value.detach()
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        found = repr(value) if shape is None else f"of the shape {tuple(shape)}"
        raise TypeError(
            f"scalar {place} of report() is {found}: it must be one number, such as loss.item()"
        ) from None


class Totals(Tuple[float, ...]):
    """What units have reported, summed over the whole batch: a tuple of numbers."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        try:
            return super().__getitem__(place)
        except IndexError:
            raise IndexError(f"totals[{place}]: {self._why()}") from None

    def _why(self) -> str:
        if len(self) == 0:
            return (
                "there are none. Units report them by micro.report(loss.item()) in the inner loop, "
                "and a step that was left out (step.applied is false) has none"
            )
        count = "one scalar" if len(self) == 1 else f"{len(self)} scalars"
        return f"units report {count}, micro.report(loss.item(), ..)"


class Micro:
    """A unit of a batch to compute: one micro-batch."""

    batch: int
    """Which batch it is of: the step, where `micro_steps` is 1."""
    unit: int
    """Which unit of the batch, from 0."""
    step: int
    """Which step the batch is a part of."""
    samples: range
    """Its samples, as numbers within the batch."""
    coefficient: float
    """What its gradient is multiplied with when it is taken, an entry of the code."""
    scalars: Tuple[Any, ...]
    """What `report` was told: numbers, and tensors of an accelerator."""
    empty: bool
    """Whether it has no gradient on purpose: see `nothing`."""

    def __init__(
        self, settings: Settings, batch: int, step: int, part: Tuple[int, int, int, float]
    ):
        unit, start, end, coefficient = part
        self.batch = batch
        self.unit = unit
        self.step = step
        self.samples = range(start, end)
        self.coefficient = coefficient
        self.scalars = ()
        self.empty = False
        self._settings = settings

    def report(self, *scalars: Any) -> None:
        """Scalars of this unit, such as its loss and its number of tokens.

        `Step.totals` is their sum over the whole batch, each unit counted once, whoever computed
        it. Every unit of a run reports equally many. With `reduction="tokens"` the second one is
        the number of tokens.

        One that is not finite makes its sum NaN for this step, on all replicas alike, and nothing
        else: whether the step is applied is decided by the gradient. Raises ValueError for a
        number of tokens that is not finite, by which gradients would be divided.
        """
        values = tuple(_scalar(place, scalar) for place, scalar in enumerate(scalars))
        if self._settings.reduction == "tokens" and len(values) > 1:
            if isinstance(values[1], float) and not math.isfinite(values[1]):
                raise ValueError(
                    f"unit {self.unit} of batch {self.batch} reports {values[1]} tokens: a number "
                    'of tokens is finite, since with reduction="tokens" the gradient is divided '
                    "by it"
                )
        self.scalars = values

    def nothing(self) -> None:
        """Says that this unit has no loss, and so no gradient, on purpose: zeros are sent."""
        self.empty = True

    @property
    def seed(self) -> int:
        """A 64-bit number that depends on the run's seed, the batch and the unit alone."""
        return self._settings.unit_seed(self.batch, self.unit, "generator")

    def __repr__(self) -> str:
        return f"Micro(batch={self.batch}, unit={self.unit}, coefficient={self.coefficient})"
