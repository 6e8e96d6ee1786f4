"""What acts once for every step, though a step may take several iterations of the loop.

`optimizer.step()`, `zero_grad()` and `scheduler.step()` do nothing in an iteration that does not
decide a step. They stay the user's objects: optimizers get attributes, and schedulers, whose
attributes are their state, another class for the time of the run. Of a scheduler that `prepare` was
not given, which may be made later, the class's own `step` asks here.
"""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.optim import lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._core.warn import pass_over, warn
from .iterations import Iterations
from .model import shares
from .watch import Kept

pass_over(lr_scheduler.__file__)

# In the classes that schedulers which were given have meanwhile.
_OWN = "_of_codedgrad"


class Gates:
    """The optimizers and schedulers of a run, until it is over."""

    def __init__(
        self,
        iterations: Iterations,
        optimizers: Sequence[torch.optim.Optimizer],
        schedulers: Sequence[Any],
        kept: Kept,
        lengths: AbstractSet[Optional[int]],
    ):
        self._iterations = iterations
        self._kept = kept
        self._lengths = lengths
        self._attributes: List[Tuple[torch.optim.Optimizer, str, Any]] = []
        self._classes = [(scheduler, type(scheduler)) for scheduler in schedulers]
        # Whether the step of a scheduler goes on, which may call those of others.
        self._stepping = False
        for optimizer in optimizers:
            self._set(optimizer, "step", self._step_of(optimizer))
            self._set(optimizer, "zero_grad", self._zero_of(optimizer))
        for place, scheduler in enumerate(schedulers):
            scheduler.__class__ = self._class_of(type(scheduler), place)
            self._check_length(scheduler)
        _watch(self, optimizers)
        self._optimizers = [
            (own, {id(each) for group in own.param_groups for each in group["params"]})
            for own in optimizers
        ]
        known = weakref.ref(self)

        def other(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            gates = known()
            if gates is not None:
                gates._other_steps(optimizer)

        self._others = register_optimizer_step_pre_hook(other)

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
        self._others.remove()
        _unwatch(self)

    def _set(self, optimizer: torch.optim.Optimizer, name: str, value: Any) -> None:
        self._attributes.append((optimizer, name, optimizer.__dict__.get(name)))
        setattr(optimizer, name, value)

    def _step_of(self, optimizer: torch.optim.Optimizer) -> Any:
        inner, iterations = optimizer.step, self._iterations

        @functools.wraps(inner)
        def step(closure: Any = None, **kwargs: Any) -> Any:
            loss = None
            if closure is not None:
                # Lightning's has the forward and the backward pass in it.
                with torch.enable_grad():
                    loss = closure()
            iterations.check_step()
            if iterations.sync_gradients:
                # By which PyTorch's schedulers know that it comes before theirs.
                optimizer._opt_called = True  # type: ignore[attr-defined]
                iterations.stepped(optimizer)
                iterations.body.look()
                inner(**kwargs)
                iterations.body.settled()
            return loss

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        return step

    def _other_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """One that a given one has within it, over the same parameters, makes the given one's step."""
        if self._iterations.sync_gradients:
            for each, parameters in self._optimizers:
                if each is not optimizer and shares(optimizer, parameters):
                    self._iterations.stepped(each)

    def _zero_of(self, optimizer: torch.optim.Optimizer) -> Any:
        inner, iterations = optimizer.zero_grad, self._iterations

        @functools.wraps(inner)
        def zero_grad(set_to_none: bool = True) -> None:
            if iterations.sync_gradients or not iterations.is_open:
                inner(set_to_none)

        return zero_grad

    def _class_of(self, kind: type, place: int) -> type:
        gates = self

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if gates._counts(place, _epoch(kind, args, kwargs)):
                return gates.go(kind.step, self, *args, **kwargs)  # type: ignore[attr-defined]
            return None

        told = {"step": step, "__module__": kind.__module__, "__doc__": kind.__doc__, _OWN: True}
        return type(kind.__name__, (kind,), told)

    def go(self, step: Any, *args: Any, **kwargs: Any) -> Any:
        """A scheduler makes its step."""
        before, self._stepping = self._stepping, True
        self._iterations.body.look()
        try:
            return step(*args, **kwargs)
        finally:
            self._stepping = before
            self._iterations.body.settled()

    def lets(self, scheduler: Any, epoch: Any) -> bool:
        """Whether a scheduler that was not given makes its step, or a part of another one's."""
        # The first one is of its making; not all count theirs, so newer PyTorch says it.
        first = getattr(scheduler, "_step_count", 1) == 0
        if self._stepping or getattr(scheduler, "_is_initial", first):
            return True
        if self._kept.meet(scheduler):
            warn(
                f"prepare was not given this {type(scheduler).__name__}: its step() acts once for each "
                "step of its optimizer all the same. Give it to prepare(), where it can be read"
            )
            self._check_length(scheduler)
        return self._counts(self._kept.place_of(scheduler), epoch)

    def _check_length(self, scheduler: Any) -> None:
        """Warns of a schedule that is made for another number of steps than the run has."""
        kind, steps = type(scheduler).__name__, self._iterations.steps
        lengths: Dict[str, Any] = {"total_steps": getattr(scheduler, "total_steps", None)}
        lambdas: Sequence[Any] = getattr(scheduler, "lr_lambdas", ())
        for each in lambdas:
            keywords: Dict[str, Any] = getattr(each, "keywords", {})
            lengths["num_training_steps"] = keywords.get("num_training_steps")
        # These may be shorter on purpose: a part of the run, or one of several rounds.
        for name in ("T_max", "total_iters"):
            length = getattr(scheduler, name, None)
            if isinstance(length, int) and length > steps:
                lengths[name] = length
        for name, length in lengths.items():
            if isinstance(length, int) and length not in self._lengths:
                warn(
                    f"{kind} has {name}={length}, and the run has {steps} steps, in each of which all "
                    "workers take part. Give prepare a function in the scheduler's place, "
                    "lambda optimizer, steps: .., which is called with the run's number of steps"
                )

    def _counts(self, place: int, epoch: Any) -> bool:
        """Whether a scheduler's step is to be made now, maybe up to somewhere in an epoch."""
        iterations = self._iterations
        if iterations.is_open:
            if epoch is not None:
                iterations.body.check_asked(f"scheduler.step({epoch}) was called by")
            if not iterations.decides:
                raise RuntimeError(
                    "scheduler.step() before backward(): whether this iteration ends the step is "
                    "not known yet. It comes after optimizer.step()"
                )
            return iterations.sync_gradients
        end = iterations.end
        if end is None:
            # Before the loop: as a resumed script counts up to where it goes on.
            return True
        if iterations.stands != end or self._kept.ends[place] >= end:
            return False
        self._kept.ends[place] = end
        return True


# By the identity of optimizers; and the steps of classes as PyTorch has them.
_GATES: Dict[int, "weakref.ref[Gates]"] = {}
_STEPS: List[Tuple[type, Any]] = []
_LOCK = threading.Lock()


def _watch(gates: Gates, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Schedulers of these optimizers ask before they step."""
    with _LOCK:
        for kind in [] if _STEPS else list(_kinds()):
            _STEPS.append((kind, kind.__dict__["step"]))
            setattr(kind, "step", _asking(kind.__dict__["step"]))
        _GATES.update({id(optimizer): weakref.ref(gates) for optimizer in optimizers})


def _unwatch(gates: Gates) -> None:
    with _LOCK:
        for key in [key for key, each in _GATES.items() if each() in (None, gates)]:
            del _GATES[key]
        for kind, step in [] if _GATES else _STEPS:
            setattr(kind, "step", step)
        if not _GATES:
            _STEPS.clear()


def _kinds() -> Iterator[type]:
    """The classes of schedulers that have a `step` of their own."""
    found: List[type] = [lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau]
    for kind in found:
        below: List[type] = kind.__subclasses__()
        found += [each for each in below if each not in found]
    return (each for each in found if "step" in each.__dict__ and _OWN not in each.__dict__)


def _asking(inner: Any) -> Any:
    @functools.wraps(inner)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Accelerate's wrapper has the optimizer in it.
        optimizer = getattr(self, "optimizer", None)
        known = _GATES.get(id(getattr(optimizer, "optimizer", optimizer)))
        gates = None if known is None else known()
        if gates is None:
            return inner(self, *args, **kwargs)
        lets = gates.lets(self, _epoch(type(self), args, kwargs))
        return gates.go(inner, self, *args, **kwargs) if lets else None

    return step


def _epoch(kind: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The epoch that a scheduler is told: others are told a metric first."""
    names = [*inspect.signature(kind.step).parameters][1:]  # type: ignore[attr-defined]
    return {**dict(zip(names, args)), **kwargs}.get("epoch")
