"""The parts of a model that lie in one process: of each parameter what is here.

A plain tensor lies here whole. Of a DTensor, which FSDP2, tensor parallelism and expert parallelism
make, `to_local()` lies here. Whatever hands gradients over, writes decoded ones, digests parameters
or saves a replica works on parts and knows nothing of placements.

`content_of` answers what a worker of several ranks asks of placements: which ranks have the same
numbers of a parameter.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Any, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn


# What a DTensor is in a state that another process can read.
_MARKED = {"part", "placements"}


def is_cut(tensor: Any) -> bool:
    """Whether it is a DTensor, of which a part lies here."""
    # Its import takes seconds, and a process that has a DTensor has imported it.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What of a tensor lies here, with the version that writing to it counts up."""
    if not is_cut(tensor):
        return tensor
    cut: Any = tensor
    with torch.no_grad():
        found = cut.to_local()
    # A collective's result that is not there yet.
    waited: torch.Tensor = found.wait() if hasattr(found, "wait") else found
    return waited


def as_part(numbers: torch.Tensor, like: Any) -> torch.Tensor:
    """The tensor of which these numbers are the part here, cut as `like` is."""
    if not is_cut(like):
        return numbers
    found: torch.Tensor = type(like.detach()).from_local(
        numbers,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
    return found


class Part:
    """What of a parameter lies here, with a tensor's names for what is asked of it."""

    def __init__(self, parameter: nn.Parameter):
        self.whole = parameter
        here = local(parameter)
        self.shape, self.dtype, self.device = here.shape, here.dtype, here.device
        self._numel: int = here.numel()
        self._size: int = here.element_size()

    @property
    def grad(self) -> Optional[torch.Tensor]:
        """The part of the gradient that lies here."""
        gradient = self.whole.grad
        return None if gradient is None else local(gradient)

    @grad.setter
    def grad(self, numbers: Optional[torch.Tensor]) -> None:
        self.whole.grad = None if numbers is None else as_part(numbers, self.whole)

    def reduce(self) -> None:
        """Has a gradient that is a sum over ranks, as tensor parallelism leaves some, be cut as its
        parameter is: a collective of the parameter's mesh, which all its ranks enter or none."""
        gradient: Any = self.whole.grad
        if is_cut(gradient) and any(each.is_partial() for each in gradient.placements):
            whole: Any = self.whole
            self.whole.grad = gradient.redistribute(placements=whole.placements)

    def numel(self) -> int:
        return self._numel

    def element_size(self) -> int:
        return self._size

    def detach(self) -> torch.Tensor:
        return local(self.whole).detach()

    def register_post_accumulate_grad_hook(self, hook: Any) -> Any:
        whole: Any = self.whole
        return whole.register_post_accumulate_grad_hook(hook)


def content_of(parameter: Any) -> object:
    """What is equal, among the ranks of a worker, for those that have the same numbers of a
    parameter: dimension, placement, coordinate and size of each cut; None where all ranks have
    them."""
    if not is_cut(parameter):
        return None
    mesh = parameter.device_mesh
    place = mesh.get_coordinate()
    cuts = [
        (dimension, str(how), place[dimension], mesh.size(dimension))
        for dimension, how in enumerate(parameter.placements)
        if not how.is_replicate() and mesh.size(dimension) > 1
    ]
    return tuple(cuts) or None


def ranks_of(parameter: Any) -> Set[int]:
    """The ranks of the process group over which a DTensor is cut, or replicated."""
    return {int(each) for each in parameter.device_mesh.mesh.flatten()}


def placements_of(named: Sequence[Tuple[str, Any]]) -> List[str]:
    """How each parameter is cut; empty where none is."""
    if not any(is_cut(parameter) for _, parameter in named):
        return []
    return [str(getattr(parameter, "placements", "")) for _, parameter in named]


def with_parts(state: Any) -> Any:
    """A state with the parts here in place of DTensors, marked: data that another process can read."""
    if is_cut(state):
        return {"part": local(state), "placements": str(state.placements)}
    if type(state) in (dict, OrderedDict):
        return type(state)((name, with_parts(value)) for name, value in state.items())
    if type(state) in (list, tuple):
        return type(state)(with_parts(value) for value in state)
    return state


def restored(value: Any, like: Any) -> Any:
    """What `with_parts` has made of a DTensor, again one: of a parameter cut as `like` is.

    Raises ValueError where it is cut otherwise.
    """
    if not (isinstance(value, dict) and set(value) == _MARKED):
        return value
    here = str(like.placements) if is_cut(like) else "a whole tensor"
    if here != value["placements"]:
        raise ValueError(f"a part of {value['placements']}, where this worker has {here}")
    return as_part(value["part"].to(like.device).clone(), like)


def all_restored(state: Any, like: Any) -> Any:
    """A state that `with_parts` has gone through, with DTensors cut as those of `like` are: a state
    of the same form, or one tensor."""
    if type(state) in (dict, OrderedDict) and set(state) != _MARKED:
        return type(state)(
            (name, all_restored(each, like.get(name) if isinstance(like, dict) else like))
            for name, each in state.items()
        )
    if type(state) in (list, tuple):
        alike = type(like) is type(state) and len(like) == len(state)
        others = like if alike else [like] * len(state)
        return type(state)(all_restored(each, other) for each, other in zip(state, others))
    return restored(state, like)
