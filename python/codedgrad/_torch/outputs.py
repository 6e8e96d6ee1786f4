"""The model that `prepare` gives back, and what it gives in a skipped iteration.

It looks like DistributedDataParallel's. In a skipped iteration it gives outputs of the shapes that
it gave before: of every output the first row of its last dimension is kept, and shown as often as
there are rows: logits cost one row. A backward pass to them comes to an end there, and is told.

When a backward pass is over is told in the thread that has asked for it. Where a step is decided is
waited for there: in the main thread, which sees SIGTERM, where a callback of PyTorch's engine may run
in one of a device's, while the main thread is in C++.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, Tuple, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .._core.warn import pass_over
from .iterations import Iterations

# Kept for so many forms of inputs, before all are forgotten.
_KEPT = 32

# What a loop for FSDP2 calls.
_FSDP = (
    "set_requires_gradient_sync",
    "set_requires_all_reduce",
    "set_is_last_backward",
    "unshard",
    "reshard",
)

# Told that a backward pass has come to an output.
Reached = Callable[..., None]


class Outputs:
    """The outputs of one module, by the number of the call within its iteration and its inputs."""

    def __init__(self, reached: Reached):
        self._reached = reached
        self._known: Dict[object, _Node] = {}
        # What makes outputs take part in a backward pass.
        self._leaf = torch.zeros((), requires_grad=True)

    def watch(self, key: object, found: Any) -> None:
        """Keeps what a forward pass has given, and tells when a backward pass comes to it."""
        self.keep(key, found)
        for leaf in tensors_of(found):
            if leaf.requires_grad:
                leaf.register_hook(self._reached)  # type: ignore[no-untyped-call]

    def keep(self, key: object, found: Any) -> None:
        """Keeps what a forward pass has given."""
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[key] = _Node(found)

    def knows(self, key: object) -> bool:
        """Whether there is something to show."""
        return key in self._known

    def hollow(self, key: object) -> Any:
        """The same as before, as far as it has been kept."""
        return self._known[key].shown(self._leaf, self._reached)


def form_of(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> object:
    """By what inputs are told apart: shapes and formats, and what is no tensor."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    return tuple(_form(leaf) for leaf in leaves), repr(spec) if kwargs else len(args)


def _form(leaf: Any) -> object:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype
    return leaf if isinstance(leaf, (bool, int, str, type(None))) else type(leaf)


def tensors_of(found: Any) -> List[torch.Tensor]:
    """All tensors in lists, dictionaries, dataclasses and all else that PyTorch looks into."""
    leaves: List[torch.Tensor] = []
    for leaf in pytree.tree_flatten(found)[0]:
        if isinstance(leaf, torch.Tensor):
            leaves.append(leaf)
        elif _is_record(leaf):
            for field in dataclasses.fields(leaf):
                leaves += tensors_of(getattr(leaf, field.name))
    return leaves


def _is_record(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


class _Node:
    """A structure of outputs."""

    def __init__(self, found: Any):
        leaves, self._spec = pytree.tree_flatten(found)
        self._leaves: List[Any] = [_kept(leaf) for leaf in leaves]

    def shown(self, leaf: torch.Tensor, reached: Reached) -> Any:
        kept = (_Row, _Record)
        shown = [
            each.shown(leaf, reached) if isinstance(each, kept) else each for each in self._leaves
        ]
        return pytree.tree_unflatten(shown, self._spec)


def _kept(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _Row(leaf)
    return _Record(leaf) if _is_record(leaf) else leaf


class _Record:
    """A dataclass among the outputs."""

    def __init__(self, found: Any):
        self._found = copy.copy(found)
        self._fields = {
            field.name: _Node(getattr(found, field.name)) for field in dataclasses.fields(found)
        }
        for name in self._fields:
            object.__setattr__(self._found, name, None)

    def shown(self, leaf: torch.Tensor, reached: Reached) -> Any:
        found = copy.copy(self._found)
        for name, node in self._fields.items():
            object.__setattr__(found, name, node.shown(leaf, reached))
        return found


class _Row:
    """A tensor among the outputs."""

    def __init__(self, found: torch.Tensor):
        self._shape = found.shape
        self._trained = found.requires_grad
        row = found.detach()
        while row.dim() > 1 and row.shape[0]:
            row = row[0]
        # What is done with the output afterwards must not reach it.
        self._row = row.clone()

    def shown(self, leaf: torch.Tensor, reached: Reached) -> Any:
        if not self._trained:
            return _spread(self._row, self._shape)
        return _Hollow.apply(leaf, self._row, self._shape, reached)


def _spread(row: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Memory of its own, which can be written and seen in other shapes like a real output."""
    if row.is_floating_point():
        # A script that ends at a loss that is NaN would end without a reason.
        row = row.nan_to_num()
    return row.expand(shape).clone(memory_format=torch.contiguous_format)


class _Hollow(torch.autograd.Function):
    """An output that nothing was computed for."""

    @staticmethod
    def forward(
        ctx: Any, leaf: torch.Tensor, row: torch.Tensor, shape: torch.Size, reached: Reached
    ) -> torch.Tensor:
        ctx.reached = reached
        return _spread(row, shape)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        cast(Reached, ctx.reached)()
        return None, None, None, None


for _path in (torch.autograd.__file__, torch._tensor.__file__):
    pass_over(_path)


class Waits(Protocol):
    """What is told."""

    def backward_over(self) -> None:
        """A backward pass is over in this thread."""


_watching: List["weakref.ref[Waits]"] = []
_original: Optional[Callable[..., Any]] = None


def _backward(*args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.backward`, which `Tensor.backward` calls."""
    assert _original is not None
    # One within another, of a checkpointed part, ends with that.
    inner = torch._C._current_graph_task_id() != -1
    found = _original(*args, **kwargs)
    if not inner:
        for reference in list(_watching):
            waits = reference()
            if waits is not None:
                waits.backward_over()
    return found


def watch(waits: Waits) -> None:
    """From now on it is told."""
    global _original
    if _original is None:
        _original = torch.autograd.backward
    if torch.autograd.backward is _original:
        torch.autograd.backward = _backward
    _watching.append(weakref.ref(waits))


def unwatch(waits: Waits) -> None:
    """It is told no more; after the last one PyTorch's function is back."""
    _watching[:] = [each for each in _watching if each() is not None and each() is not waits]
    if not _watching and torch.autograd.backward is _backward:
        assert _original is not None
        torch.autograd.backward = _original


class CodedModule(nn.Module):
    """A module in a run, where DistributedDataParallel has one: `module` is yours, names in its
    state begin with `module.`, and `run` is the run.

    In training mode its forward pass is a part of the loop's iteration; in `eval()` and under
    `torch.no_grad()` it is the module alone. A copy of it is in no run.
    """

    module: nn.Module
    """The module that was given to `prepare`."""
    run: Any
    """The run, as `prepare` has joined it: a `PreparedRun`."""

    def __init__(
        self, module: nn.Module, iterations: Iterations, run: Any, device: Optional[torch.device]
    ):
        super().__init__()
        self.module = module
        self.run = run
        self._device = device
        self._iterations: Optional[Iterations] = iterations
        self._outputs: Optional[Outputs] = Outputs(iterations.reached)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's outputs, or in a skipped iteration outputs of their shapes."""
        if self._device is not None:
            args, kwargs = pytree.tree_map(self._moved, (args, kwargs))
        if self._iterations is None or not (self.training and torch.is_grad_enabled()):
            return self.module(*args, **kwargs)
        key, shown = self._begin(args, kwargs)
        if shown is not None:
            return shown[0]
        found = self.module(*args, **kwargs)
        self._end(key, found)
        return found

    def _begin(
        self, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Tuple[object, Optional[List[Any]]]:
        """By what this call is known, and in a skipped iteration its outputs."""
        iterations, outputs = self._iterations, self._outputs
        assert iterations is not None and outputs is not None
        hollow = iterations.forward()
        key = iterations.call(), form_of(args, kwargs)
        if not hollow:
            return key, None
        if not iterations.on_all_ranks(outputs.knows(key)):
            # Nothing of this form was computed here yet.
            with torch.no_grad():
                known = self.module(*args, **kwargs)
            outputs.keep(key, pytree.tree_map(_trained, known))
        return key, [outputs.hollow(key)]

    def _end(self, key: object, found: Any) -> None:
        assert self._outputs is not None
        self._outputs.watch(key, found)

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._device) if isinstance(leaf, torch.Tensor) else leaf

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in it are parts of a unit that goes on: gradients are summed."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def require_backward_grad_sync(self) -> bool:
        """Whether a unit is complete with the next backward pass."""
        return self._iterations is None or self._iterations.require_sync

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        if self._iterations is not None:
            self._iterations.require_sync = bool(value)

    def __getattr__(self, name: str) -> Any:
        # Loops for FSDP2 call these on the model.
        if name in _FSDP:
            return getattr(self.module, name)
        return super().__getattr__(name)

    def register_comm_hook(self, *_: Any, **__: Any) -> None:
        """Refused: gradients are not summed by torch.distributed."""
        raise TypeError(
            "register_comm_hook: gradients are not summed by torch.distributed here. Leave it out; "
            "the run can send bfloat16, by `codedgrad run --wire bf16` or `serve(wire=\"bfloat16\")`"
        )

    def join(self, *_: Any, **__: Any) -> None:
        """Refused: there are no uneven inputs."""
        raise TypeError(
            "join(): all workers make the same number of steps, and a run does not wait for late "
            "workers. Leave `with model.join():` out"
        )

    def __getstate__(self) -> Dict[str, Any]:
        # A copy, as of an average of models, is in no run.
        return {**self.__dict__, "run": None, "_iterations": None, "_outputs": None}


def leave_uncompiled() -> None:
    """Has `torch.compile` compile the module in the wrapper, and nothing of the wrapper itself."""
    kind: Any = CodedModule
    if not hasattr(kind._begin, "_torchdynamo_disable"):
        disable: Any = torch.compiler.disable
        kind._begin, kind._end = disable(kind._begin), disable(kind._end)
        disable(kind.forward, recursive=False)


def _trained(leaf: Any) -> Any:
    """An output as it is when gradients are on."""
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().requires_grad_()
    return leaf
