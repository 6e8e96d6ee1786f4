"""A unit of a batch (a micro-batch), as the inner loop gets it, and what units report."""

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
    """Sums over the whole batch of what its units have reported: a tuple of numbers."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        try:
            return super().__getitem__(place)
        except IndexError:
            raise IndexError(f"totals[{place}]: {self._why()}") from None

    def _why(self) -> str:
        if len(self) == 0:
            return (
                "there are none. Report them by micro.report(loss.item()) in the inner loop, or with "
                "prepare by model.run.report(loss) before backward(), and read them if "
                "model.run.sync_gradients. A skipped step (step.applied is false) may have none"
            )
        count = "one scalar" if len(self) == 1 else f"{len(self)} scalars"
        return (
            f"units report {count}, by micro.report(loss.item(), ..), or with prepare by "
            "model.run.report(loss, ..)"
        )


class Micro:
    """A unit of a batch to compute: one micro-batch."""

    batch: int
    """The number of its batch: the step's, where `micro_steps` is 1."""
    unit: int
    """Its number within the batch, from 0."""
    step: int
    """The step that its batch is a part of."""
    samples: range
    """Its samples, as numbers within the batch."""
    coefficient: float
    """The factor of its gradient in the worker's message, an entry of the code."""
    scalars: Tuple[Any, ...]
    """The arguments of `report`: numbers, and tensors of an accelerator."""
    empty: bool
    """Whether it has no gradient on purpose: see `nothing`."""
    begins: bool
    """Whether it is the first unit of its task."""
    ends: bool
    """Whether it is the last unit of its task."""

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
        self.begins = self.ends = True
        self._settings = settings

    def report(self, *scalars: Any) -> None:
        """Reports scalars of this unit, such as its loss and its number of tokens.

        `Step.totals` is their sum over the whole batch; each unit counts once, whichever worker
        computed it. Every unit of a run reports equally many. With `reduction="tokens"` the second
        one is the number of tokens.

        One that is not finite makes its total NaN for this step, on all replicas. It has no other
        effect: only the gradient decides whether the step is applied. Raises ValueError for a
        number of tokens that is not finite, because gradients are divided by it.
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
        """Declares that this unit has no loss, and so no gradient: the worker sends zeros."""
        self.empty = True

    @property
    def seed(self) -> int:
        """A 64-bit number that depends only on the run's seed, the batch and the unit."""
        return self._settings.unit_seed(self.batch, self.unit, "generator")

    def __repr__(self) -> str:
        return f"Micro(batch={self.batch}, unit={self.unit}, coefficient={self.coefficient})"
