"""The model that `prepare` gives back: it looks like DistributedDataParallel's."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ._torch_outputs import Outputs, form_of
from ._torch_passages import Passages


class CodedModule(nn.Module):
    """A module in a run, where DistributedDataParallel has one: `module` is yours, names in its
    state begin with `module.`, and `run` is the run.

    In training mode its forward pass is a part of the loop's passage; in `eval()` and under
    `torch.no_grad()` it is the module alone. A copy of it is in no run.
    """

    module: nn.Module
    """The module that was given to `prepare`."""
    run: Any
    """The run, as `prepare` has joined it: a `PreparedRun`."""

    def __init__(
        self, module: nn.Module, passages: Passages, run: Any, device: Optional[torch.device]
    ):
        super().__init__()
        self.module = module
        self.run = run
        self._device = device
        self._passages: Optional[Passages] = passages
        self._outputs: Optional[Outputs] = Outputs(passages.reached)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's outputs, or in a hollow passage outputs of their shapes."""
        if self._device is not None:
            args, kwargs = pytree.tree_map(self._moved, (args, kwargs))
        if self._passages is None or not (self.training and torch.is_grad_enabled()):
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
        """By what this call is known, and in a hollow passage its outputs."""
        passages, outputs = self._passages, self._outputs
        assert passages is not None and outputs is not None
        hollow = passages.forward()
        key = passages.call(), form_of(args, kwargs)
        if not hollow:
            return key, None
        if not outputs.knows(key):
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
        return self._passages is None or self._passages.sync

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        if self._passages is not None:
            self._passages.sync = bool(value)

    def register_comm_hook(self, *_: Any, **__: Any) -> None:
        """Refused: gradients are not summed by torch.distributed."""
        raise TypeError(
            "register_comm_hook: gradients are not summed by torch.distributed here. Leave it out; "
            "the run can send bfloat16, by `codedgrad run --wire bf16` or `serve(wire=\"bfloat16\")`"
        )

    def join(self, *_: Any, **__: Any) -> None:
        """Refused: there are no uneven inputs."""
        raise TypeError(
            "join(): every worker has equally many steps here, and who is late is not waited for. "
            "Leave `with model.join():` out"
        )

    def __getstate__(self) -> Dict[str, Any]:
        # A copy, as of an average of models, is in no run.
        return {**self.__dict__, "run": None, "_passages": None, "_outputs": None}


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
