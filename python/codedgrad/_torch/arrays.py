"""What is trained with PyTorch: the parameters of a model, whose gradients lie in `p.grad`."""

from __future__ import annotations

import math
import weakref
from typing import Any, ContextManager, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import _native
from .._core.arrays import Arrays
from .._core.states import Progress, State
from .._core.units import Micro as _Micro
from .._core.warn import warn
from .announcer import Announcer
from .fsdp import fsdp_modules
from .host import Decoded, Transfer, Unit, digest
from .model import Replica, mark_joined, shares, trained_of
from .parts import Part
from .staging import Staging, stream_of
from .sums import transfer_of
from .watch import Agreed, GradScaler, Schedules, Stepping

_GRAPHS = (
    "A captured CUDA graph with a backward pass in it writes to the gradients that parameters had "
    "when it was captured, and no unit has those: capture by torch.cuda.make_graphed_callables"
)


# So many squares are added up at a time, in an order that no number of threads changes.
_ROW = 1 << 12


class Micro(_Micro):
    """A unit of a batch to compute: one micro-batch. Its gradient is what `backward` leaves."""

    def generator(self, device: Union[str, torch.device] = "cpu") -> torch.Generator:
        """Random numbers that depend on the run's seed, the batch and the unit alone."""
        generator = torch.Generator(device=device)
        generator.manual_seed(self.seed)
        return generator


class TorchArrays(Arrays):
    """The parameters of some modules that take a gradient.

    Gradients become memory of the host, and tensors again, by a `Transfer`; for states and digests
    see `Replica` and `host`.
    """

    micro = Micro

    def __init__(
        self,
        modules: List[nn.Module],
        optimizers: List[torch.optim.Optimizer],
        state: Mapping[str, Any],
        overlap: bool,
    ):
        self._modules = modules
        self._optimizers = optimizers
        self._parameters = [Part(parameter) for _, parameter in trained_of(modules)]
        self._scalers = [item for item in state.values() if isinstance(item, GradScaler)]
        self._replica = Replica(modules, optimizers, state)
        self._agreed = Agreed(modules, optimizers)
        self._schedules = Schedules(optimizers, state)
        self._stepping = Stepping(optimizers)
        self._overlap = overlap
        self._device = self._parameters[0].device.type
        self._transfer = self._transfer_of()
        # Until the first unit: whose gradients a captured CUDA graph may have been given.
        self._before = [each.grad is not None for each in self._parameters]
        # Made when a run is joined: hooks in the user's objects.
        self.announcer: Optional[Announcer] = None
        self._hooks: List[Any] = []

    def _transfer_of(self) -> Transfer:
        return transfer_of(self._parameters)

    def joined(self, progress: Progress) -> None:
        for scaler in self._scalers:
            scaler.follow(progress)
        known, stepping = weakref.ref(progress), self._stepping

        def check(*_: Any) -> None:
            stepping.begun = True
            progress = known()
            if progress is not None:
                _check_whole(progress)

        parameters = {id(each.whole) for each in self._parameters}

        def other(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            # As one within another: it is the given one's step.
            stepping.begun = stepping.begun or shares(optimizer, parameters)

        self._hooks = [optimizer.register_step_pre_hook(check) for optimizer in self._optimizers]
        self._hooks.append(register_optimizer_step_pre_hook(other))
        self.announcer = Announcer(self._handed_over())
        mark_joined(self._modules, progress)

    def _handed_over(self) -> List[Part]:
        """Of which parameters gradients are handed over here."""
        return self._parameters

    def release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        if self.announcer is not None:
            self.announcer.close()
        self._transfer.close()

    def seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._device != "cpu":
            device: Any = torch.get_device_module(self._device)
            getattr(device, "manual_seed_all", device.manual_seed)(seed)
        elif torch.cuda._initialized:  # asking for more would initialise it
            torch.cuda.manual_seed_all(seed)

    def prepare(self, micro: _Micro, native: _native.Worker) -> None:
        self._agreed.unit_begins(micro)
        self.hide()
        unit = self._unit_of(micro, native, micro.coefficient / self._scale())
        self._transfer.begin(unit)
        assert self.announcer is not None
        useful = self._overlap and (self._transfer.early or (micro.ends and native.in_parts()))
        self.announcer.begin(self._transfer.out if useful else None)

    def _unit_of(self, micro: _Micro, native: _native.Worker, factor: float) -> Unit:
        if micro.begins and self._transfer.gave_up:
            self._transfer.close()
            moved = self._transfer.moved
            self._transfer = Staging(self._parameters, stream_of(self._parameters[0].device))
            self._transfer.moved = moved
        return Unit(native, micro, factor, len(self._parameters))

    def named(self, first: int, last: int) -> str:
        names = [name for name, _ in trained_of(self._modules)[first : last + 1]]
        return f"parameter {names[0]}" if len(names) == 1 else f"parameters {', '.join(names)}"

    def _check_unit(self, micro: _Micro) -> None:
        """The unit is computed: raises RuntimeError if it must not count."""
        assert self.announcer is not None
        self.announcer.end()
        self._agreed.unit_ends(micro)
        found = any(parameter.grad is not None for parameter in self._parameters)
        if not found and not micro.empty:
            graphs = "" if self._device == "cpu" else f". {_GRAPHS}"
            if fsdp_modules(self._modules):
                graphs += ". Of a unit's backward passes FSDP2 synchronises the last one at least"
            raise RuntimeError(
                f"unit {micro.unit} of batch {micro.batch} left no gradient in any parameter: call "
                "loss.backward() in the inner loop, or micro.nothing() if it has no loss on purpose"
                f"{graphs}"
            )

    def collect(self, micro: _Micro, native: _native.Worker) -> List[bool]:
        self._check_unit(micro)
        there = self._transfer.collect()
        self._warn_of_graphs(there)
        return there

    def _warn_of_graphs(self, there: List[bool]) -> None:
        """Says so, after the first unit, if some gradients may have gone where they are not looked for."""
        before, self._before = self._before, []
        missing = sum(had and not has for had, has in zip(before, there))
        if missing and self._device != "cpu":
            warn(
                f"{missing} parameters had a gradient when the run was joined, and have none of its "
                f"first unit. {_GRAPHS}"
            )

    def settle(self) -> Optional[bool]:
        return self._transfer.settle()

    def report(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        return {} if self._device == "cpu" else {"device": self._transfer.moved.report()}

    def _scale(self) -> float:
        """What gradients are divided by when they are taken."""
        scale = 1.0
        for scaler in self._scalers:
            scale *= scaler.get_scale()
        return scale

    def show(self, there: List[bool], factor: float, native: _native.Worker) -> None:
        self._stepping.shown += 1
        # The last unit's gradients are handed over: what is decoded may have their memory.
        self.hide()
        found = self._transfer.back(there, Decoded(native, factor))
        for parameter, gradient in zip(self._parameters, found):
            parameter.grad = gradient

    def hide(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def gradients(self) -> List[Any]:
        return [parameter.whole.grad for parameter in self._parameters]

    @torch.no_grad()
    def clip(self, max_norm: float) -> float:
        """Scales the decoded gradient to this 2-norm at most; gives back the norm that it had."""
        norm = self.norm()
        factor = max_norm / (norm + 1e-6)
        if factor < 1.0:
            for part in self._parameters:
                gradient = part.grad
                if gradient is not None:
                    gradient.mul_(factor)
        return norm

    def norm(self) -> float:
        """The 2-norm of the decoded gradient."""
        return math.sqrt(self.squares([True] * len(self._parameters)))

    def squares(self, counted: Sequence[bool]) -> float:
        """The sum of the squares of the gradients that are counted, in float64 and in an order that
        depends on no device."""
        with_gradient = [
            gradient.detach().reshape(-1)
            for part, counts in zip(self._parameters, counted)
            if counts and (gradient := part.grad) is not None
        ]
        sums: List[torch.Tensor] = []
        for flat in with_gradient:
            whole = len(flat) // _ROW * _ROW
            sums.append(flat[:whole].view(-1, _ROW).double().square().sum(1))
            sums.append(flat[whole:].double().square().sum().reshape(1))
        return math.fsum(number for each in sums for number in each.tolist())

    def span(self, name: str) -> Optional[ContextManager[Any]]:
        # A record_function that no profiler sees costs 20 microseconds, this question a fifth of one.
        if not torch._C._autograd._profiler_enabled():
            return None
        found: ContextManager[Any] = torch.profiler.record_function(name)
        found.__enter__()
        return found

    def applied(self) -> None:
        self._schedules.look()
        self._stepping.look()

    def save(self) -> List[bytes]:
        return self._replica.save()

    def load(self, state: Sequence[bytes]) -> None:
        self._replica.load(state)

    def digest(self) -> int:
        return digest([each.detach() for each in self._parameters])

    def fingerprint(self) -> object:
        return self._replica.fingerprint()


def _check_whole(progress: Progress) -> None:
    """Before an optimizer's step: the gradient must be the whole batch's."""
    if progress.over or progress.state is not State.UNDECIDED:
        return
    raise RuntimeError(
        "the gradient is not whole yet: optimizer.step() comes after `for micro in step:`, "
        "once it has ended without `break`"
    )
