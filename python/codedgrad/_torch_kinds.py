"""What all workers of a run must have in common beside the model, as far as it changes bits."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Dict, List, Sequence, Tuple

import torch

# A group's settings by which PyTorch chooses how a step is computed.
_WAYS = ("fused", "foreach", "capturable")


def kinds_of(optimizers: Sequence[torch.optim.Optimizer]) -> List[Tuple[str, List[List[str]]]]:
    """The types of some optimizers, and how each of their groups is computed."""
    return [
        (type(each).__name__, [_ways_of(group) for group in each.param_groups])
        for each in optimizers
    ]


def _ways_of(group: Dict[str, Any]) -> List[str]:
    """Those of a group's ways that are on, where nobody says as PyTorch chooses them."""
    ways = {name: group.get(name) for name in _WAYS}
    if "foreach" in group and ways["foreach"] is None and ways["fused"] is None:
        # PyTorch's own choice, which is not public.
        module = import_module("torch.optim.optimizer")
        choose = getattr(module, "_default_to_fused_or_foreach", None)
        if choose is not None:
            differentiable = bool(group.get("differentiable"))
            ways["foreach"] = choose(group["params"], differentiable, use_fused=False)[1]
        if isinstance(group.get("lr"), torch.Tensor) and not ways["capturable"]:
            ways["foreach"] = False
    return [name for name in _WAYS if ways[name]]


def versions_with(versions: str, device: torch.device) -> str:
    """What computes, as a worker says it: also which card, on an accelerator that has a name."""
    if device.type in ("cpu", "meta"):
        return versions
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return versions if name is None else f"{versions}, {name(device)}"
