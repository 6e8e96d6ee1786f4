"""A replica of a model as a state: what a worker that falls behind takes over."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

import torch
from torch import nn

from ._torch_host import read_state, write_state
from ._torch_model import own_name


class Replica:
    """Modules, optimizers, and whatever else the user has named in `state=`."""

    def __init__(
        self,
        modules: List[nn.Module],
        optimizers: List[torch.optim.Optimizer],
        state: Mapping[str, Any],
    ):
        self._modules = modules
        self._optimizers = optimizers
        self._state = state

    def save(self) -> List[bytes]:
        """All of it; names are those without `torch.compile`."""
        models = [
            {own_name(name): value for name, value in module.state_dict().items()}
            for module in self._modules
        ]
        content = {
            "models": models,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "state": {name: item.state_dict() for name, item in self._state.items()},
        }
        return [write_state(content)]

    def load(self, state: Sequence[bytes]) -> None:
        """Takes over what `save` gave."""
        content = read_state(state[0])
        for module, found in zip(self._modules, content["models"]):
            names = {own_name(name): name for name in module.state_dict()}
            module.load_state_dict({names.get(name, name): x for name, x in found.items()})
        for optimizer, found in zip(self._optimizers, content["optimizers"]):
            _load_optimizer(optimizer, found)
        for name, item in self._state.items():
            item.load_state_dict(content["state"][name])

    def fingerprint(self) -> object:
        """The numbers and texts in `state=`, which the end of a step's body changes."""
        return [repr(_without_tensors(item.state_dict())) for item in self._state.values()]


def _load_optimizer(optimizer: torch.optim.Optimizer, found: Dict[str, Any]) -> None:
    """Loads an optimizer's state as it was saved: PyTorch rounds it to the parameters' format."""
    optimizer.load_state_dict(found)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for place, saved in found["state"].items():
        own = optimizer.state[parameters[place]]
        for name, value in saved.items():
            if isinstance(value, torch.Tensor) and own[name].dtype is not value.dtype:
                own[name] = value.clone().to(own[name].device)


def _without_tensors(state: Any) -> Any:
    """The numbers and texts of a state: what schedulers count with."""
    if isinstance(state, dict):
        return {name: _without_tensors(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_without_tensors(value) for value in state]
    return state if isinstance(state, (int, float, str, type(None))) else None
