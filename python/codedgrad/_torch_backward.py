"""Tells when a backward pass is over, in the thread that has asked for it.

Where a step is decided is waited for there: in the main thread, which sees SIGTERM, where a callback
of PyTorch's engine may run in one of a device's, while the main thread is in C++.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, List, Optional, Protocol

import torch

from . import _warn

for _path in (torch.autograd.__file__, torch._tensor.__file__):
    _warn.pass_over(_path)


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
