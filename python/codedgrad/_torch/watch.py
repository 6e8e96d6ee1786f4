"""What is watched while a run goes on: that what was agreed at `join` stays as it was.

Also what scripts do with gradients in iterations that do not decide a step, where there are none:
functions of PyTorch that would mislead there are others while a prepared run goes on, and errors
about a gradient that is None say why it is. PyTorch's loss scaler is one of them; the one for fp16
that all replicas turn alike is here.
"""

from __future__ import annotations

import functools
import math
import re
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Set, Tuple

import torch
from torch import nn
from torch.nn.utils import clip_grad

from .._core.states import Progress, State
from .._core.units import Micro
from .._core.warn import warn
from .body import Unwritten
from .fsdp import fsdp_modules, reshard
from .model import check_optimizers, check_states, parameters_of, persistent_buffers, trained_of


class Agreed:
    """What takes a gradient, and what computing a unit must not write."""

    def __init__(self, modules: List[nn.Module], optimizers: List[torch.optim.Optimizer]):
        self._modules = modules
        self._sharded = fsdp_modules(modules)
        self._optimizers = optimizers
        self._named = trained_of(modules)
        self._parameters = [parameter for _, parameter in self._named]
        self._formats = [(each.dtype, each.device) for each in self._parameters]
        self._frozen = {
            name for name, parameter in parameters_of(modules) if not parameter.requires_grad
        }
        self._buffers = list(persistent_buffers(modules))
        self._versions_of_buffers: List[int] = []
        # All parameters, from a unit's beginning to its end.
        self._all = Unwritten([*parameters_of(modules)])
        # The step in which the model was last compared with what was agreed.
        self._compared = -1

    def unit_begins(self, micro: Micro) -> None:
        """Raises RuntimeError if the model is not what it was at `join`."""
        if micro.step != self._compared:
            self._compare_layout()
            self._compared = micro.step
        self._versions_of_buffers = [buffer._version for _, _, _, buffer in self._buffers]
        self._all.begins()

    def unit_ends(self, micro: Micro) -> None:
        """What computing a unit writes into the model is not the same on all replicas."""
        path = self._all.changed()
        if path is not None:
            raise RuntimeError(
                f"parameter {path} was written while unit {micro.unit} was computed: its gradient "
                "would be of parameters that no other worker has. Change parameters after the "
                "step is decided, with the optimizer's step; what takes two gradients, as SAM, "
                "takes two steps of a run by the iterator, codedgrad.torch.join"
            )
        versions = self._versions_of_buffers
        for (path, module, name, buffer), version in zip(self._buffers, versions):
            if buffer._version != version or module._buffers.get(name) is not buffer:
                raise RuntimeError(
                    f"buffer {path} of a {type(module).__name__} was written while unit "
                    f"{micro.unit} was computed: it depends on who computes what, and replicas "
                    "would drift apart. Put the module in eval(), use one without such statistics, "
                    "or register the buffer with persistent=False if it is only a cache"
                )

    def _compare_layout(self) -> None:
        """What takes a gradient must be what was agreed."""
        reshard(self._sharded)
        found = trained_of(self._modules)
        if len(found) == len(self._named) and all(
            new is old for (_, new), old in zip(found, self._parameters)
        ):
            check_optimizers(self._optimizers, self._named)
            for (name, parameter), (dtype, device) in zip(self._named, self._formats):
                if parameter.dtype is not dtype:
                    raise RuntimeError(
                        f"parameter {name} was {dtype} at join and is {parameter.dtype} now: "
                        "convert the model before it"
                    )
                if parameter.device != device:
                    raise RuntimeError(
                        f"parameter {name} was on {device} at join and is on {parameter.device} "
                        "now: move the model before it"
                    )
            return
        before, now = {name for name, _ in self._named}, {name for name, _ in found}
        changed = (sorted(before ^ now) or sorted(before))[0]
        there = {name for name, _ in parameters_of(self._modules)}
        if changed in self._frozen & now:
            verb = "was frozen at join and takes a gradient"
        elif changed in now - before:
            verb = "was added"
        elif changed in there - now:
            verb = "was frozen"
        else:
            verb = "was taken away or replaced"
        raise RuntimeError(
            f"parameter {changed} {verb} after join: build the model, and freeze or unfreeze what "
            "is to be, before it. What is trained only later, or no longer, takes part from the "
            "beginning, with a learning rate of 0 meanwhile; for another set of parameters close() "
            "the run and join again"
        )


class Kept:
    """What goes with a replica beside what the user names: up to which step each scheduler has made
    its steps outside of the loop, and schedulers that `prepare` was not given, in the order in which
    they have made their first steps."""

    def __init__(self, schedulers: int):
        self.ends = [-1] * schedulers
        self._given = schedulers
        self._met: List[Any] = []
        # Which of these cannot be handed over.
        self._bare: Set[int] = set()
        # States of some that are not met here yet.
        self._owed: List[Any] = []

    def meet(self, scheduler: Any) -> bool:
        """Whether it makes its first step; warns if it cannot be handed over."""
        if any(each is scheduler for each in self._met):
            return False
        try:
            check_states([scheduler], {})
        except TypeError as error:
            self._bare.add(len(self._met))
            warn(f"{error}. It is not handed over: a worker that falls behind keeps its own")
        self._met.append(scheduler)
        self._catch_up()
        return True

    def place_of(self, scheduler: Any) -> int:
        """Where its end is kept."""
        return self._given + [each is scheduler for each in self._met].index(True)

    def _catch_up(self) -> None:
        self.ends += [-1] * (self._given + len(self._met) - len(self.ends))
        for place, scheduler in enumerate(self._met[: len(self._owed)]):
            state, self._owed[place] = self._owed[place], None
            if state is not None:
                scheduler.load_state_dict(state)

    def state_dict(self) -> Dict[str, Any]:
        """To be handed over."""
        met = [
            None if place in self._bare else each.state_dict()
            for place, each in enumerate(self._met)
        ]
        return {"ends": list(self.ends), "schedulers": met + self._owed[len(met) :]}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.ends = [int(end) for end in state["ends"]]
        self._owed = list(state["schedulers"])
        self._catch_up()


class Schedules:
    """Whether some scheduler changes learning rates and is in no state."""

    def __init__(self, optimizers: List[torch.optim.Optimizer], state: Mapping[str, Any]):
        self._optimizers = optimizers
        self._state = state
        # The learning rates at join, until it is settled whether schedulers are in state=.
        self._rates: Optional[List[Optional[float]]] = [_rate(group) for group in self._groups()]

    def _groups(self) -> Sequence[Dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def look(self) -> None:
        """Warns, once, of a scheduler that whoever takes over this replica's state would lack."""
        if self._rates is None:
            return
        # Under prepare those that are not given are kept, too.
        if any(not isinstance(item, GradScaler) for item in self._state.values()):
            self._rates = None
            return
        # PyTorch's schedulers leave the rate that they begin with in what they change.
        changed = any(
            "initial_lr" in group and _rate(group) != before
            for group, before in zip(self._groups(), self._rates)
        )
        if changed:
            self._rates = None
            warn(
                "a scheduler changes the learning rate and is not in state=: a worker that takes "
                "over another's state would count its steps from 0: join with "
                'state={"scheduler": scheduler}'
            )


class Stepping:
    """Whether the optimizers that were given make their steps."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]):
        self._are_there = bool(optimizers)
        #: Whether one has begun a step, and how many decoded gradients were shown.
        self.begun = False
        self.shown = 0

    def look(self) -> None:
        """Warns, once, where gradients come and nothing is made of them."""
        # A scaler of the user's own may leave out the first.
        if self._are_there and self.shown == 2 and not self.begun:
            self._are_there = False
            warn(
                "two steps are committed, but no optimizer passed to join has made a step: call "
                "optimizer.step() after `for micro in step:`, where the whole batch's gradient is "
                "in p.grad. If the script changes parameters in another way, pass optimizer=None"
            )


def _rate(group: Dict[str, Any]) -> Optional[float]:
    """A parameter group's learning rate, which may be a tensor that is written in place."""
    rate = group.get("lr")
    return None if rate is None else float(rate)


class GradScaler(torch.amp.GradScaler):
    """A loss scaler for fp16 whose scale is a power of two: taking it out again is exact.

    Give it to `join` in `state`. `scale(loss).backward()`, `unscale_`, `step` and `update` are
    written as with PyTorch's own. Gradients are unscaled as they are taken from each unit; a unit
    that overflows does not count where another worker has it without, and a step that no worker could
    compute is refused for all, so that all replicas halve the scale together.
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ):
        factors = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
        }
        for name, value in factors.items():
            if not _is_power_of_two(value):
                raise ValueError(
                    f"{name} is {value}: it must be a power of two, or scaling would round"
                )
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._value = float(init_scale)
        self._good_steps = 0
        self._followed: Optional["weakref.ref[Progress]"] = None

    def follow(self, progress: Progress) -> None:
        """The steps of a run count from now on: `join` says so."""
        self._followed = weakref.ref(progress)

    def _progress(self) -> Progress:
        progress = None if self._followed is None else self._followed()
        if progress is None:
            raise RuntimeError(
                'the scaler is in no run: join(..., state={"scaler": scaler}) makes it part of one'
            )
        return progress

    def scale(self, outputs: Any) -> Any:
        """A loss, or an iterable of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            return outputs * self._value
        return type(outputs)(self.scale(output) for output in outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: gradients are unscaled when they are taken."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step()`, unless there is no gradient: the step was refused."""
        state = self._progress().state
        if self._enabled and state not in (State.UNDECIDED, State.APPLIED):
            return None
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Halves the scale if the step was refused; doubles it after enough good ones."""
        if not self._enabled:
            return
        if new_scale is not None:
            value = float(new_scale)
            if not _is_power_of_two(value):
                raise ValueError(f"new_scale is {value}: it must be a power of two")
            self._value = value
            return
        progress = self._progress()
        # Without a run that goes on, steps are good as the optimizer takes them.
        alone = progress.over and progress.state is State.UNDECIDED
        if progress.state is State.SKIPPED:
            self._value *= self._backoff_factor
            self._good_steps = 0
        elif progress.state is State.APPLIED or alone:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                self._value *= self._growth_factor
                self._good_steps = 0

    def __getstate__(self) -> Dict[str, Any]:
        state: Dict[str, Any] = super().__getstate__()
        return {**state, "_followed": None}

    def get_scale(self) -> float:
        """The scale now."""
        return self._value if self._enabled else 1.0

    def state_dict(self) -> Dict[str, Any]:
        """The scale, and for how long it has been good."""
        return {"scale": self._value, "good_steps": self._good_steps}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self._value = float(state_dict["scale"])
        self._good_steps = int(state_dict["good_steps"])


def _is_power_of_two(value: float) -> bool:
    return math.frexp(value)[0] == 0.5


# What Python and PyTorch say of None, and of what is left of gradients without those that are None.
_SAYS = re.compile(r"NoneType|non-empty|empty (sequence|list)|argument is empty|not have been used")
_HINT = (
    " (codedgrad: read p.grad under `if model.run.sync_gradients:`. It is None in this iteration "
    "of the loop, since its step is not decided yet: a step may take several iterations, and in "
    "the last one p.grad is the whole batch's. torch.autograd.grad needs the iterator, "
    "codedgrad.torch.join)"
)

_REFUSED = (
    " (codedgrad: this step was refused, since no worker had a finite gradient of some micro-batch, and "
    "p.grad is None: read it where it is not)"
)


class Norms:
    """The norms that the body of an iteration asks for, in its order, and those of the last step."""

    def __init__(self) -> None:
        self._last: Dict[int, torch.Tensor] = {}
        self._asked = 0

    def begins(self) -> None:
        """A body begins."""
        self._asked = 0

    def next(self, found: torch.Tensor, is_known: bool) -> torch.Tensor:
        """The one that is asked for; where there are no gradients yet, that of the last step."""
        place, self._asked = self._asked, self._asked + 1
        if is_known:
            self._last[place] = found.detach().clone()
            return found
        return self._last[place].clone() if place in self._last else found


class WatchedLoop(Protocol):
    """What is asked of the loop."""

    @property
    def undecided(self) -> bool:
        """Whether the iteration that is open, in this thread, has no gradient."""

    @property
    def computes(self) -> bool:
        """Whether an iteration is open in which this thread computes."""

    norms: Norms


_loops: List["weakref.ref[WatchedLoop]"] = []
_before: Dict[Tuple[Any, str], Any] = {}
_LOCK = threading.Lock()


def watch(loop: WatchedLoop) -> None:
    """From now on it is asked."""
    with _LOCK:
        for owner, name, make in [] if _loops else _CHANGES:
            inner = getattr(owner, name, None)
            if inner is not None:
                _before[owner, name] = inner
                setattr(owner, name, make(inner))
        _loops.append(weakref.ref(loop))


def unwatch(loop: WatchedLoop) -> None:
    """It is asked no more; after the last one PyTorch's functions are back."""
    with _LOCK:
        _loops[:] = [each for each in _loops if each() is not None and each() is not loop]
        for (owner, name), inner in [] if _loops else list(_before.items()):
            setattr(owner, name, inner)
        if not _loops:
            _before.clear()


def _alive() -> List[WatchedLoop]:
    found = [each() for each in _loops]
    return [each for each in found if each is not None]


def check_scaler(where: str, item: Any) -> None:
    """Raises TypeError for PyTorch's scaler, which is not ours."""
    if isinstance(item, torch.amp.GradScaler) and not isinstance(item, GradScaler):
        raise TypeError(
            f"{where}torch.amp.GradScaler drops steps by itself, each worker other ones: write "
            "scaler = coded.GradScaler(), of codedgrad.torch, and prepare(.., "
            'state={"scaler": scaler})'
        )


def _norm_of_none(inner: Callable[..., Any]) -> Callable[..., Any]:
    """The norm of no gradients is not 0 where there are none yet: logs would show that there were,
    and what clips by norms of before would clip by it."""

    @functools.wraps(inner)
    def total_norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found = inner(tensors, *args, **kwargs)
        here = next((each for each in _alive() if each.computes), None)
        return found if here is None else here.norms.next(found, bool(tensors) or not here.undecided)

    return total_norm


def _refusing(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Ours does not come here."""

    @functools.wraps(inner)
    def scale(self: Any, outputs: Any) -> Any:
        if self.is_enabled() and any(each.computes for each in _alive()):
            check_scaler("a loss is scaled by a scaler that is in no run: ", self)
        return inner(self, outputs)

    return scale


_CHANGES: List[Tuple[Any, str, Callable[..., Any]]] = [
    (clip_grad, "_get_total_norm", _norm_of_none),
    (torch.nn.utils, "get_total_norm", _norm_of_none),
    (torch.amp.GradScaler, "scale", _refusing),
]


def explain(error: BaseException, refused: bool) -> None:
    """Says in an error why a gradient is None, if that may be what it is about."""
    kinds = (AttributeError, TypeError, RuntimeError, ValueError)
    if isinstance(error, kinds) and _SAYS.search(str(error)) and "(codedgrad: " not in str(error):
        error.args = (f"{error}{_REFUSED if refused else _HINT}",)


def explain_at_exit(refused: bool) -> Callable[[], None]:
    """The same for the error that ends this process, where a generator hides it from the loop. Gives
    back what ends it."""
    shows, thread = sys.excepthook, threading.get_ident()
    is_on = True

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        if is_on and threading.get_ident() == thread:
            explain(error, refused)
        shows(kind, error, trace)

    def end() -> None:
        nonlocal is_on
        is_on = False
        # Another one may have been put around it.
        if sys.excepthook is hook:
            sys.excepthook = shows

    sys.excepthook = hook
    return end
