"""What a script changes in its loop beside what optimizers and schedulers do there.

A step may take several iterations of the loop, and another number of them on each worker. So what
counts iterations comes to something else on each, except under schemes where each iteration is a
step. An error says so under all schemes alike: where a script changes a learning rate, or
parameters without a gradient, in an iteration in which it has not asked for the step (`run.index`,
`run.sync_gradients`).
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from .._core.warn import is_own
from .model import is_joined, own_name, parameters_of, persistent_buffers
from .parts import local

# Frames around the loop in which modules are looked for.
_FRAMES = 30
# Of so many tensors, and so many numbers of each, bits are compared.
_SAMPLED = 16
_NUMBERS = 64
# What refers to the dictionary of a frame's names that a script does not have.
_HOLDERS = 3

Named = List[Tuple[str, torch.Tensor]]


class Body:
    """The body of an iteration, from its beginning to its end."""

    def __init__(self, modules: List[nn.Module], optimizers: List[torch.optim.Optimizer]):
        self._optimizers = optimizers
        given: Named = [*parameters_of(modules)]
        buffers = [(path, buffer) for path, _, _, buffer in persistent_buffers(modules)]
        self._given: Named = [each for each in given if not each[1].requires_grad] + buffers
        trained: Named = [each for each in given if each[1].requires_grad]
        # Of the iteration that is open, if its step is not decided.
        self._trained = Unwritten(trained[:: _every(trained)])
        self._known = {id(each) for _, each in given} | {id(each) for _, each in buffers}
        # Until a loop begins: what is watched is found with its first iteration.
        self._watched: Optional[Unwritten] = None
        self._settings: List[Dict[str, Any]] = []
        # What the open iteration has changed before an optimizer or a scheduler acted.
        self._set: Optional[str] = None
        self._written: Optional[str] = None
        #: Whether the script has asked for the step.
        self.asked = False

    def loop_begins(self) -> None:
        """What lies between two loops counts no iterations; what is watched is found with the next."""
        self._watched = None
        self._trained.forget()

    def begins(self) -> None:
        """An iteration begins."""
        if self._watched is None:
            self._watched = Unwritten(self._given + list(_beside(self._known)))
        self.asked = False
        self._set = self._written = None
        self.settled()

    def look(self) -> None:
        """Optimizers or schedulers are to act, or the iteration ends: what the script has changed."""
        if self._watched is None:
            return
        if self._set is None:
            self._set = changed_setting(self._settings, settings_of(self._optimizers))
        if self._written is None:
            self._written = self._watched.changed()

    def settled(self) -> None:
        """Optimizers, schedulers, or a state that was taken over, have changed what they may."""
        self._settings = settings_of(self._optimizers)
        if self._watched is not None:
            self._watched.begins()

    def goes_on_undecided(self) -> None:
        """The backward pass is over, and decides no step: parameters are not to change."""
        self._trained.begins()

    def ends(self, sync_gradients: bool) -> None:
        """The iteration's body is over. Raises RuntimeError if it has changed what it must not."""
        self.look()
        path = self._trained.changed()
        self._trained.forget()
        if self._watched is None:
            return
        self._watched.forget()
        if path is not None:
            raise RuntimeError(
                f"parameter {path} was changed in an iteration of the loop that decides no step: a "
                "step may take several iterations, and another number on each worker. Change "
                "parameters by the optimizer, or under `if model.run.sync_gradients:`"
            )
        if self._set is not None:
            self.check_asked(f"{self._set} of an optimizer was changed by")
        if self._written is not None and not (sync_gradients and self.asked):
            raise RuntimeError(
                f"{self._written} takes no gradient of this run and was changed in an iteration of the "
                "loop: a step may take several iterations, and another number on each worker. "
                "Change it once a step, under `if model.run.sync_gradients:`"
            )

    def check_asked(self, what: str) -> None:
        """Raises RuntimeError if the script has set something without asking for the step."""
        if not self.asked:
            raise RuntimeError(
                f"{what} the loop's body, in which the script has not asked for the step: what counts "
                "iterations counts others on each worker. Count with model.run.index, or do it under "
                "`if model.run.sync_gradients:`, or give a scheduler to prepare"
            )


def settings_of(optimizers: Sequence[torch.optim.Optimizer]) -> List[Dict[str, Any]]:
    """The settings of all parameter groups, to be compared."""
    return [
        {name: _shown(value) for name, value in group.items() if name != "params"}
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def changed_setting(before: List[Dict[str, Any]], now: List[Dict[str, Any]]) -> Optional[str]:
    """The name of one that is another one now."""
    if before == now:
        return None
    return next(
        (name for old, new in zip(before, now) for name in new if new[name] != old.get(name)),
        "a parameter group",
    )


class Unwritten:
    """Tensors that must have the same numbers for a time, again and again.

    It is seen by their versions and places, and in the host's memory by some of the numbers, since
    `.data` leaves versions alone. What is written as it is, by `flatten_parameters` or `clamp_`, is
    told apart by a sum of all bits: in the first time of all tensors, later of those that were.
    """

    def __init__(self, named: Named):
        self.named = named
        self._every = _every(named)
        self._summed: Optional[Set[int]] = None
        self._before: List[_Look] = []

    def begins(self) -> None:
        """From now on."""
        self._before = [
            _Look(local(each), not place % self._every, self._summed is None or place in self._summed)
            for place, (_, each) in enumerate(self.named)
        ]

    def forget(self) -> None:
        """Until it begins again, nothing is looked at."""
        self._before = []

    def changed(self) -> Optional[str]:
        """The name of one that has other numbers than at the beginning."""
        if not self._before:
            return None
        summed, found = set(self._summed or ()), None
        for place, ((path, tensor), before) in enumerate(zip(self.named, self._before)):
            here = local(tensor)
            if before.is_written(here):
                summed.add(place)
            if found is None and before.is_changed(here):
                found = path
        self._summed = summed
        return found


class _Look:
    """What a tensor is now."""

    def __init__(self, tensor: torch.Tensor, sampled: bool, summed: bool):
        self._mark = _mark(tensor)
        # Of another format numbers are not compared: of what is trained that is an error by itself.
        self._format = tensor.dtype
        self._numbers = _numbers(tensor) if sampled and self._mark else None
        self._bits = _bits(tensor) if summed and self._mark else None

    def is_written(self, tensor: torch.Tensor) -> bool:
        return self._mark is not None and _mark(tensor) not in (None, self._mark)

    def is_changed(self, tensor: torch.Tensor) -> bool:
        if self._mark is None or tensor.dtype is not self._format:
            return False
        if self._numbers is not None and _numbers(tensor) != self._numbers:
            return True
        if self._bits is None or not self.is_written(tensor):
            return False
        bits = _bits(tensor)
        return bits is None or bits.item() != self._bits.item()


def _every(named: Named) -> int:
    return -(-len(named) // _SAMPLED) or 1


def _mark(tensor: torch.Tensor) -> Optional[Tuple[int, int]]:
    if is_lazy(tensor) or tensor.is_inference() or type(tensor.data) is not torch.Tensor:
        return None
    return None if tensor.is_meta else (tensor._version, tensor.data_ptr())


def _bits(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """A sum of a tensor's bits, which is not waited for."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return plain.detach().view(kinds[plain.element_size()]).sum(dtype=torch.int64)


def _numbers(tensor: torch.Tensor) -> Optional[bytes]:
    """Some of a tensor's numbers, if they are in the host's memory."""
    if not (tensor.is_cpu and tensor.layout is torch.strided and tensor.numel()):
        return None
    if not tensor.is_contiguous():
        return None
    some = tensor.detach().view(-1)[:: max(1, tensor.numel() // _NUMBERS)].contiguous()
    return some.view(torch.uint8).numpy().tobytes()


def _beside(known: Any) -> Iterator[Tuple[str, torch.Tensor]]:
    """What modules hold that the functions around the loop see, and `prepare` was not given."""
    frame: Optional[FrameType] = sys._getframe(1)
    scopes: Dict[int, Any] = {}
    for _ in range(_FRAMES):
        if frame is None:
            break
        if not is_own(frame.f_code.co_filename):
            own = _locals_of(frame)
            scopes[id(frame)] = own
            scopes.setdefault(id(frame.f_globals), frame.f_globals)
            if hasattr(own.get("self"), "__dict__"):
                scopes[id(own["self"])] = vars(own["self"])
        frame = frame.f_back
    seen = set(known)
    for scope in scopes.values():
        for name, value in list(scope.items()):
            if not issubclass(type(value), nn.Module) or is_joined(value):
                continue
            held: Named = [*parameters_of([value])]
            # Statistics of what is in no run depend on what this worker has computed.
            held += [
                (path, buffer)
                for path, module, _, buffer in persistent_buffers([value])
                if not (isinstance(module, _NormBase) and module.track_running_stats)
            ]
            for path, tensor in held:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{name}.{own_name(path)}", tensor


def _locals_of(frame: FrameType) -> Dict[str, Any]:
    """A copy of a frame's names.

    Before Python 3.13 a function's frame has one dictionary, which `locals()` gives, too: to look at
    it writes it again. So functions that ask for it are left out. In that of others what the function
    drops would live on.
    """
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_function and sys.version_info < (3, 13) and "locals" in frame.f_code.co_names:
        return {}
    kept = frame.f_locals
    found = dict(kept)
    # The frame, this name, and the call have it; or the script has it, too, in another way.
    if is_function and isinstance(kept, dict) and sys.getrefcount(kept) <= _HOLDERS:
        kept.clear()
    return found


def _shown(value: Any) -> Any:
    """A setting of an optimizer, to be compared; a number on a device is not waited for."""
    if not isinstance(value, torch.Tensor):
        return value
    return float(value) if value.is_cpu and value.numel() == 1 else (id(value), value._version)
