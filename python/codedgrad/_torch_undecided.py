"""What scripts do with gradients in iterations that do not decide a step: there are none.

Functions of PyTorch that would mislead there are others while a prepared run goes on, and errors
about a gradient that is None say why it is.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Protocol, Tuple

import torch
from torch.nn.utils import clip_grad

from ._torch_scaler import GradScaler

# What Python and PyTorch say of None, and of what is left of gradients without those that are None.
_SAYS = re.compile(r"NoneType|non-empty|empty (sequence|list)|argument is empty|not have been used")
_HINT = (
    " (codedgrad: read p.grad under `if model.run.whole:`. It is None in this iteration of the loop, "
    "since its step is not decided yet: a step may take several iterations, and in the last one "
    "p.grad is the whole batch's. torch.autograd.grad needs the iterator, codedgrad.torch.join)"
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


class Iteration(Protocol):
    """What is asked of the loop."""

    @property
    def undecided(self) -> bool:
        """Whether the iteration that is open, in this thread, has no gradient."""

    @property
    def computes(self) -> bool:
        """Whether an iteration is open in which this thread computes."""

    norms: Norms


_loops: List["weakref.ref[Iteration]"] = []
_before: Dict[Tuple[Any, str], Any] = {}
_LOCK = threading.Lock()


def watch(loop: Iteration) -> None:
    """From now on it is asked."""
    with _LOCK:
        for owner, name, make in [] if _loops else _CHANGES:
            inner = getattr(owner, name, None)
            if inner is not None:
                _before[owner, name] = inner
                setattr(owner, name, make(inner))
        _loops.append(weakref.ref(loop))


def unwatch(loop: Iteration) -> None:
    """It is asked no more; after the last one PyTorch's functions are back."""
    with _LOCK:
        _loops[:] = [each for each in _loops if each() is not None and each() is not loop]
        for (owner, name), inner in [] if _loops else list(_before.items()):
            setattr(owner, name, inner)
        if not _loops:
            _before.clear()


def _alive() -> List[Iteration]:
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
