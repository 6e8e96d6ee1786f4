"""What of a model is trained, and by which names its parts are called."""

from __future__ import annotations

import weakref
from typing import AbstractSet, Any, Iterator, List, Sequence, Set, Tuple, Union

import torch
from torch import nn

from ._states import Progress

# Models that are in a run that goes on: each can be in one only.
_JOINED: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Progress]]" = weakref.WeakKeyDictionary()


def own_name(name: str) -> str:
    """A parameter's name as it is without `torch.compile`."""
    return name.replace("_orig_mod.", "")


def modules_of(model: Union[nn.Module, Sequence[nn.Module]]) -> List[nn.Module]:
    """What the user calls the model, as a list; raises TypeError for what is none."""
    several = not isinstance(model, nn.Module) and hasattr(model, "__iter__")
    # Whatever somebody has handed over: it is looked at before it is called a module.
    modules: List[Any] = list(model) if several else [model]  # type: ignore[arg-type]
    for module in modules:
        if isinstance(module, torch.optim.Optimizer):
            raise TypeError(
                f"model is {type(module).__name__}, an optimizer: the model comes first, "
                "join(model, optimizer, ..)"
            )
        if not isinstance(module, nn.Module):
            raise TypeError(f"model is {type(module).__name__}: it must be an nn.Module or a list")
    if not modules:
        raise ValueError("model is an empty list: nothing is trained")
    return modules


def parameters_of(modules: Sequence[nn.Module]) -> Iterator[Tuple[str, nn.Parameter]]:
    """All parameters of some modules, with the names by which errors call them."""
    for place, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            own = own_name(name)
            yield (own if len(modules) == 1 else f"{place}.{own}"), parameter


def trained_of(modules: Sequence[nn.Module]) -> List[Tuple[str, nn.Parameter]]:
    """The parameters that take a gradient, each once, in the order of the gradient."""
    seen: Set[int] = set()
    found = []
    for name, parameter in parameters_of(modules):
        if parameter.requires_grad and id(parameter) not in seen:
            seen.add(id(parameter))
            found.append((name, parameter))
    return found


def shares(optimizer: torch.optim.Optimizer, parameters: AbstractSet[int]) -> bool:
    """Whether an optimizer has one of these parameters, which are told by their identities."""
    return any(id(each) in parameters for group in optimizer.param_groups for each in group["params"])


def persistent_buffers(
    modules: Sequence[nn.Module],
) -> Iterator[Tuple[str, nn.Module, str, torch.Tensor]]:
    """The buffers that belong to a model's state: path, module, name and tensor."""
    for root in modules:
        for path, module in root.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    yield own_name(f"{path}.{name}" if path else name), module, name, buffer


def mark_joined(modules: Sequence[nn.Module], progress: Progress) -> None:
    """From now on these are in a run, until it is over."""
    for root in modules:
        for module in root.modules():
            _JOINED[module] = weakref.ref(progress)


def is_joined(module: nn.Module) -> bool:
    """Whether a module is in a run that goes on."""
    joined = _JOINED.get(module)
    progress = None if joined is None else joined()
    return progress is not None and not progress.over
