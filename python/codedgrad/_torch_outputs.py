"""What a module gives in a hollow passage: outputs of the shapes that it gave before.

Of every output the first row of its last dimension is kept, and shown as often as there are rows:
logits cost one row. A backward pass to them comes to an end there, and is told.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable, Dict, List, Tuple, cast

import torch
from torch.utils import _pytree as pytree

# Kept for so many forms of inputs, before all are forgotten.
_KEPT = 32

# Told that a backward pass has come to an output.
Reached = Callable[..., None]


class Outputs:
    """The outputs of one module, by the number of the call within its passage and its inputs."""

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
