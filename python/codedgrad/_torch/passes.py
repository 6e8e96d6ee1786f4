"""Where in its passes a rank computes, and where it waits for the others.

Under DistributedDataParallel a rank waits after its last gradient, and before its forward pass where
buffers are sent. Under FSDP2 it waits before each module, in both passes, and after the gradients of
each: hooks that are put before and behind those of FSDP2 see where a wait begins and ends.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, Callable, Iterable, List, Optional, Tuple

import torch
from torch.nn.parallel import DistributedDataParallel

from .fsdp import fsdp_modules
from .spans import BACKWARD, BETWEEN, FORWARD, LOADING, LOSS, OPTIMIZER, WAITING, Clock, Turns

# After the first backward pass a hook stays on the last parameter of every so many bytes:
# DistributedDataParallel sums gradients in buckets of this size.
_BUCKET_BYTES = 25 << 20

# Makes of a function what torch may call, as long as nothing has gone wrong.
Guard = Callable[[Callable[..., Any]], Any]


def _differentiable(value: Any) -> List[Any]:
    """The tensors of a module's inputs or outputs that take a gradient."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    parts: Iterable[Any] = ()
    if isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    elif dataclasses.is_dataclass(value):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    return [each for part in parts for each in _differentiable(part)]


def is_shard(parameter: Any) -> bool:
    """Whether it is a DTensor, whose type older releases of PyTorch have elsewhere."""
    return type(parameter).__name__ == "DTensor"


def bound(model: torch.nn.Module, trained: List[Any]) -> Optional[str]:
    """Why ranks may wait for each other unseen within a pass; none where they do not."""
    names = {type(each).__name__ for each in model.modules()}
    if "FullyShardedDataParallel" in names:
        return "FSDP1 gathers parameters within them"
    if "SyncBatchNorm" in names:
        return "SyncBatchNorm waits within them"
    shards = [each for each in trained if is_shard(each)]
    # FSDP2 shards the last dimension of its mesh, and copies the first one if it has two (HSDP):
    # what lies beyond is tensor parallelism, and a second mesh is that of experts.
    sharded = [[each.is_shard() for each in shard.placements] for shard in shards]
    kinds = {tuple(each) for each in sharded} - {(True,), (False, True)}
    if kinds or len({shard.device_mesh for shard in shards}) > 1:
        return "tensor or expert parallelism communicates within them"
    places = fsdp_modules([model])
    if shards and not places:
        return "tensor parallelism communicates within them"
    compiled = [each for each in model.modules() if type(each).__name__ == "OptimizedModule"]
    in_place = any(getattr(each, "_compiled_call_impl", None) is not None for each in places)
    if in_place or fsdp_modules(compiled):
        return "FSDP2's modules were compiled, hooks included"
    return None


class Passes:
    """Notes for each moment of a step what this rank turns to."""

    def __init__(
        self, clock: Clock, guard: Guard, fail: Callable[[Exception], None]
    ) -> None:
        self._clock, self._moment, self.guard = clock, clock.moment, guard
        self._turns: Turns = []
        self._fail = fail
        # What goes on around the FSDP2 modules whose forward pass is open.
        self._around: List[int] = []
        self._in_backward = False
        # When the newest gradient was there, and whether what follows it is a wait for certain: of
        # parameters' gradients only the last one of a backward pass is followed by one.
        self._last: Any = None
        self._waits = False
        # Where it says what follows the last backward pass, if nothing has come after that.
        self._after: Optional[int] = None
        # The FSDP2 module that was called last, and its output, if it is one tensor.
        self.given: Optional[Tuple[_Sharded, Any]] = None
        # Of what it turned out only later that it is not seen.
        self.unseen: Optional[str] = None
        self.handles: List[Any] = []
        self._gradients: List[Tuple[torch.nn.Parameter, Any]] = []
        self._order: Optional[List[torch.nn.Parameter]] = []
        self._ended = guard(self._backward_ended)
        self._about_to_end = guard(lambda: self._call_back(self._ended))

    def keep(self, register: Callable[..., Any], then: Callable[..., Any], **how: Any) -> Any:
        """Registers what is called until the end."""
        handle = register(self.guard(then), **how)
        self.handles.append(handle)
        return handle

    def on_gradient(self, then: Callable[[], None]) -> Callable[[Any], None]:
        """Makes a hook of a tensor that lives as long as its pass: no copy and no compiler meets it."""
        fail = self._fail

        def called(_gradient: Any) -> None:
            try:
                then()
            except Exception as error:
                fail(error)

        return called

    def watch(self, model: torch.nn.Module, trained: List[Any], is_bounded: bool) -> None:
        """Puts hooks on a model."""
        places = [] if is_bounded else fsdp_modules([model])
        for each in places:
            _Sharded(self, each)
        if model not in places:
            self._watch_whole(model, BETWEEN if places else FORWARD)
        for each in trained:
            # Of FSDP2's shards the whole parameters are seen, which have no shards' hooks.
            if not (places and is_shard(each)):
                self.watch_gradient(each)

    def _watch_whole(self, model: torch.nn.Module, within: int) -> None:
        """Sees the passes of a model that is no FSDP2 module."""
        began = self.on_gradient(lambda: self.backward_begins(BACKWARD))

        def left(_module: Any, _inputs: Any, output: Any) -> None:
            self.leave()
            if torch.is_grad_enabled():
                for each in _differentiable(output):
                    each.register_hook(began)

        inner = model.module if isinstance(model, DistributedDataParallel) else None
        # Before it computes, this sends the first rank's buffers, for which the others wait.
        if inner is not None and any(True for _ in model.buffers()):
            self.keep(model.register_forward_pre_hook, lambda *_: self.enter(WAITING))
            self.keep(inner.register_forward_pre_hook, lambda *_: self.turn(within))
        else:
            self.keep(model.register_forward_pre_hook, lambda *_: self.enter(within))
        self.keep(model.register_forward_hook, left)

    def watch_gradient(self, parameter: Any) -> None:
        """Sees when this parameter's gradient is there."""

        def seen(*_: Any) -> None:
            self._gradient_came()
            if self._order is not None:
                self._order.append(parameter)

        # FSDP2 sets the gradients of its shards itself, and calls these hooks alone.
        register = (
            parameter.register_post_accumulate_grad_hook
            if is_shard(parameter)
            else parameter.register_hook
        )
        self._gradients.append((parameter, self.keep(register, seen)))

    def turn(self, then: int, ends: bool = False) -> None:
        """From now on the rank is at something else."""
        now, last = self._moment(), self._last
        if last is not None:
            self._last = None
            if ends or self._waits:
                self._turns += (last, WAITING)
        self._turns += (now, then)
        self._after = None

    def enter(self, within: int) -> None:
        """A module is called."""
        self._around.append(within)
        self.turn(BACKWARD if self._in_backward else within)

    def leave(self) -> None:
        """A module has given its outputs."""
        if self._around:
            self._around.pop()
        if self._in_backward:
            self.turn(BACKWARD)
        elif self._around:
            self.turn(self._around[-1])
        else:
            self.turn(LOSS if torch.is_grad_enabled() else LOADING)

    def backward_begins(self, then: int) -> None:
        """Something of a backward pass is seen; if it is the first, the rank turns to something."""
        if self._in_backward:
            return
        self._in_backward = True
        if self._after is not None:
            # A pass within a pass, as checkpointing may have: no other work lay between.
            self._turns[self._after] = BACKWARD
        self.turn(then)
        self._call_back(self._about_to_end)

    @staticmethod
    def _call_back(then: Any) -> None:
        """Calls something at the end of the backward pass, behind what is to be called by now.

        DistributedDataParallel and FSDP2 wait in such calls: who asks for his own within one comes
        after them.
        """
        try:
            torch.autograd.Variable._execution_engine.queue_callback(then)
        except RuntimeError:
            # Gradients that are set when the pass is over: the optimizer's step ends it.
            pass

    def arrive(self) -> None:
        """What follows in the backward pass is a wait for a module's parameters."""
        if not self._in_backward:
            self.backward_begins(WAITING)
        else:
            self.turn(WAITING)

    def gave(self) -> None:
        """What follows is a wait for the sum of a module's gradients, until something else does."""
        self._last, self._waits = self._moment(), True

    def _gradient_came(self) -> None:
        if not self._in_backward:
            self.backward_begins(BACKWARD)
        elif self._waits and self._last is not None:
            self.turn(BACKWARD)
        self._last, self._waits = self._moment(), False

    def _backward_ended(self) -> None:
        self._in_backward = False
        self.turn(LOADING, ends=True)
        self._after = len(self._turns) - 1

    def stepping(self) -> None:
        """The optimizer begins its step."""
        if self._after is not None:
            # Gradients are clipped here, whose norm ranks may have to sum.
            self._turns[self._after] = WAITING
        self.turn(OPTIMIZER, ends=True)
        self._in_backward = False
        self._around.clear()

    def stepped(self, step: int) -> None:
        """The optimizer has taken a step."""
        turns, end = self._turns, self._moment()
        self._turns = [end, LOADING]
        self._after = None
        if turns:
            self._clock.close_step(step, turns, end)
        if self._order:
            self._thin_out()

    def _thin_out(self) -> None:
        """Keeps the hooks of those parameters alone that end a bucket."""
        order, self._order = self._order or [], None
        kept, size = {id(order[0]), id(order[-1])}, 0
        for parameter in order:
            size += parameter.numel() * parameter.element_size()
            if size >= _BUCKET_BYTES:
                kept.add(id(parameter))
                size = 0
        for parameter, handle in self._gradients:
            if id(parameter) not in kept:
                handle.remove()
        self._gradients = []

    def end(self) -> None:
        """Takes all hooks away."""
        for handle in self.handles:
            handle.remove()
        self.handles, self._gradients, self._order = [], [], None
        self.given = None


class _Sharded:
    """The hooks of an FSDP2 module, before and behind FSDP2's own."""

    def __init__(self, passes: Passes, module: torch.nn.Module) -> None:
        self._passes = passes
        within = fsdp_modules([module])[1:]
        self._kind = BETWEEN if within else FORWARD
        of_others = {id(each) for other in within for each in other.parameters()}
        self._is_whole_seen = False
        self._owns = any(
            each.requires_grad and id(each) not in of_others for each in module.parameters()
        )
        # Inputs before FSDP2's hook, and outputs before the other one.
        self._came: List[Any] = []
        self._made: Any = None
        # Whether the next module takes this one's output as it is. Then nothing lies between the
        # two in the backward pass either, and one hook less is needed.
        self._is_chained = False
        self._resume = passes.on_gradient(lambda: passes.turn(BACKWARD))
        self._gave = passes.on_gradient(passes.gave)
        self._wait = passes.on_gradient(passes.arrive)
        pre, post = module.register_forward_pre_hook, module.register_forward_hook
        passes.keep(pre, self._arrive, prepend=True, with_kwargs=True)
        passes.keep(pre, self._enter, with_kwargs=True)
        passes.keep(post, self._make, prepend=True)
        passes.keep(post, self._leave)

    def _arrive(self, _module: Any, args: Any, kwargs: Any) -> None:
        self._passes.turn(WAITING)
        if torch.is_grad_enabled():
            self._came = _differentiable(args)
            if kwargs:
                self._came += _differentiable(kwargs)

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        passes = self._passes
        passes.enter(self._kind)
        given, passes.given = passes.given, None
        if not torch.is_grad_enabled():
            return
        came, self._came = self._came, []
        if not came:
            if not self._is_whole_seen and self._owns:
                self._watch_whole_parameters(module)
            return
        inputs = _differentiable(args)
        if kwargs:
            inputs += _differentiable(kwargs)
        # Of modules that share a group only the first one's inputs are replaced, and end it.
        ends = bool(inputs) and inputs[0] is not came[0]
        if ends:
            for each in inputs:
                each.register_hook(self._gave)
        if ends and given is not None and len(came) == 1 and given[1]() is came[0]:
            given[0]._is_chained = True
            return
        for each in came:
            each.register_hook(self._resume)

    def _watch_whole_parameters(self, module: torch.nn.Module) -> None:
        """No gradient leaves the module, so that its last one is one of its parameters'."""
        whole = [each for each in module.parameters() if each.requires_grad and not is_shard(each)]
        for each in whole:
            self._passes.watch_gradient(each)
        if not whole:
            self._passes.unseen = "the backward pass: the end of a module's gradients is not seen"
        self._is_whole_seen = True

    def _make(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._made = None
        if torch.is_grad_enabled():
            self._made = made = _differentiable(output)
            if not self._is_chained:
                for each in made:
                    each.register_hook(self._wait)

    def _leave(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._passes.leave()
        made, self._made = self._made, None
        self._is_chained = False
        if made:
            # FSDP2 has put its own hook between, which waits.
            for each in made:
                each.register_hook(self._resume)
            if output is made[0]:
                self._passes.given = (self, weakref.ref(output))
