"""What acts once for every step, though a step may take several passages of the loop.

`optimizer.step()`, `zero_grad()` and `scheduler.step()` do nothing in a passage that does not decide
a step. They stay the user's objects: optimizers get attributes, and schedulers, whose attributes
are their state, another class for the time of the run.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Sequence, Tuple

import torch

from ._torch_passages import Passages
from ._torch_watch import Kept


class Gates:
    """The optimizers and schedulers of a run, until it is over."""

    def __init__(
        self,
        passages: Passages,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any],
        kept: Kept,
    ):
        self._passages = passages
        self._kept = kept
        self._attributes: List[Tuple[torch.optim.Optimizer, str, Any]] = []
        self._classes = [(scheduler, type(scheduler)) for scheduler in schedulers]
        for optimizer in optimizers:
            self._set(optimizer, "step", self._step_of(optimizer))
            self._set(optimizer, "zero_grad", self._zero_of(optimizer))
        for place, scheduler in enumerate(schedulers):
            scheduler.__class__ = self._class_of(type(scheduler), place)

    def close(self) -> None:
        """The run is over: all are as they were."""
        for optimizer, name, before in self._attributes:
            if before is None:
                optimizer.__dict__.pop(name, None)
            else:
                optimizer.__dict__[name] = before
        for scheduler, kind in self._classes:
            scheduler.__class__ = kind
        self._attributes, self._classes = [], []

    def _set(self, optimizer: torch.optim.Optimizer, name: str, value: Any) -> None:
        self._attributes.append((optimizer, name, optimizer.__dict__.get(name)))
        setattr(optimizer, name, value)

    def _step_of(self, optimizer: torch.optim.Optimizer) -> Any:
        inner, passages = optimizer.step, self._passages

        @functools.wraps(inner)
        def step(closure: Any = None, **kwargs: Any) -> Any:
            loss = None
            if closure is not None:
                # Lightning's has the forward and the backward pass in it.
                with torch.enable_grad():
                    loss = closure()
            if passages.whole:
                # By which PyTorch's schedulers know that it comes before theirs.
                optimizer._opt_called = True  # type: ignore[attr-defined]
                passages.stepped(optimizer)
                inner(**kwargs)
            return loss

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return step

    def _zero_of(self, optimizer: torch.optim.Optimizer) -> Any:
        inner, passages = optimizer.zero_grad, self._passages

        @functools.wraps(inner)
        def zero_grad(set_to_none: bool = True) -> None:
            if passages.whole or not passages.is_open:
                inner(set_to_none)

        return zero_grad

    def _class_of(self, kind: type, place: int) -> type:
        gates = self

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if gates._counts(place):
                return kind.step(self, *args, **kwargs)  # type: ignore[attr-defined]
            return None

        told = {"step": step, "__module__": kind.__module__, "__doc__": kind.__doc__}
        return type(kind.__name__, (kind,), told)

    def _counts(self, place: int) -> bool:
        """Whether a scheduler's step is to be made now."""
        passages = self._passages
        if passages.is_open:
            if not passages.decides:
                raise RuntimeError(
                    "scheduler.step() before backward(): whether the step is whole is not known "
                    "yet. It comes after optimizer.step()"
                )
            return passages.whole
        end = passages.end
        if end is None:
            # Before the loop: as a resumed script counts up to where it goes on.
            return True
        if passages.stands != end or self._kept.ends[place] >= end:
            return False
        self._kept.ends[place] = end
        return True
