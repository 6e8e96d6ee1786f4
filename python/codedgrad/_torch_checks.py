"""What `join` refuses: models, optimizers and states that cannot be replicated exactly.

Each error names the part and the cure.
"""

from __future__ import annotations

import sys
from typing import Any, Mapping, Sequence, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from ._torch_host import FORMATS, read_state, write_state
from ._torch_model import is_joined, own_name


def check_model(
    modules: Sequence[nn.Module], named: Sequence[Tuple[str, nn.Parameter]], *, ranks: bool = False
) -> None:
    """Raises for what cannot be replicated exactly, by one process, or by each of several ranks."""
    for place, root in enumerate(modules):
        for name, module in root.named_modules():
            if is_joined(module):
                raise RuntimeError(
                    "this model is in a run already: close() that before it joins again"
                )
            path = own_name(name) or type(module).__name__
            if len(modules) > 1:
                path = f"{place}.{path}"
            _check_module(path, module)
    if not ranks and torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        if world > 1:
            raise TypeError(
                f"torch.distributed is initialised with {world} ranks: where they are one worker "
                "together, give join mesh=, a DeviceMesh of them. A worker that is a single "
                "process is started without torchrun's group, or leaves out init_process_group"
            )
    if not named:
        raise TypeError("no parameter takes a gradient: nothing is trained")
    _check_version(named[0][1].device.type)
    for name, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise TypeError(f"parameter {name} has no shape yet: run the model once before join")
        if type(parameter.data) is not torch.Tensor:
            raise TypeError(
                f"parameter {name} is a {type(parameter.data).__name__}: sharded parameters cannot "
                "be coded yet: replicated ranks only. Join with the whole model in each process"
            )
        if parameter.device.type == "meta":
            raise TypeError(
                f"parameter {name} is on the meta device, where it has no numbers: give it some "
                'before join, by model.to_empty(device="cpu") and then initialising or loading it'
            )
        if parameter.device != named[0][1].device:
            raise TypeError(
                f"parameter {name} is on {parameter.device} and {named[0][0]} on "
                f"{named[0][1].device}: a worker trains on one device. Move the model to it"
            )
        if parameter.dtype.is_complex:
            raise TypeError(
                f"parameter {name} is {parameter.dtype}: gradients of complex numbers are not "
                "supported. Keep torch.view_as_real of it as the parameter"
            )
        if parameter.dtype not in FORMATS:
            raise TypeError(
                f"parameter {name} is {parameter.dtype}: gradients are summed in float32. Convert "
                "the model with .float()"
            )


def _check_version(device: str) -> None:
    """Raises if PyTorch cannot do what accelerators need: streams that one can enter."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if device not in ("cpu", "meta") and found < (2, 7):
        raise TypeError(
            f"the model is on {device}, for which PyTorch 2.7 is needed, and this is "
            f'{torch.__version__}: install a newer one, or join with model.to("cpu")'
        )


def check_accelerate(accumulate: int) -> None:
    """Raises where Accelerate divides every loss by another number than that of the backward passes
    of a unit."""
    state = sys.modules.get("accelerate.state")
    if state is None:
        return
    steps = state.GradientState().num_steps
    if steps == accumulate or steps <= 1:
        return
    raise TypeError(
        f"Accelerate divides every loss by gradient_accumulation_steps={steps}, and the coded "
        "step is the mean of its units already: gradients would be too small by that factor. "
        f"Create the Accelerator without it, and give join units={steps} per worker instead, or "
        f"prepare accumulate={steps}"
    )


def _check_module(path: str, module: nn.Module) -> None:
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise TypeError(
            f"{path} is wrapped in DistributedDataParallel, which sums gradients itself: remove "
            "the wrapper and join with the module in it. Between the ranks of a worker join(mesh=) "
            "sums them"
        )
    kind = type(module).__name__
    if kind.startswith("FSDP") or kind == "FullyShardedDataParallel":
        raise TypeError(
            f"{path} is sharded ({kind}), which does not work yet: replicated ranks only. Remove "
            "the wrapper; several ranks with the whole model each join by mesh="
        )
    if isinstance(module, nn.SyncBatchNorm) and module.training:
        raise TypeError(
            f"{path} is a SyncBatchNorm, whose forward pass waits for all ranks: use GroupNorm or "
            "LayerNorm, and leave convert_sync_batchnorm out"
        )
    if isinstance(module, _NormBase) and module.track_running_stats and module.training:
        raise TypeError(
            f"{path} is a {kind} with running statistics, which depend on who "
            "computes what: replicas would drift apart. Use GroupNorm or LayerNorm, or "
            "track_running_stats=False, or put it in eval() for good"
        )


def check_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], named: Sequence[Tuple[str, nn.Parameter]]
) -> None:
    known = {id(parameter) for _, parameter in named}
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                "LBFGS evaluates the loss within its step, on what one worker has: use an "
                "optimizer that takes one gradient a step"
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer is {kind}: it must be a torch.optim.Optimizer or a list")
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise TypeError(
                "SparseAdam takes sparse gradients alone, and decoded ones are dense: use Adam"
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in known:
                    _refuse_stranger(kind, parameter, named)


def _refuse_stranger(
    kind: str, parameter: torch.Tensor, named: Sequence[Tuple[str, nn.Parameter]]
) -> None:
    """Raises for an optimizer's parameter that is not in the model."""
    shape = tuple(parameter.shape)
    for name, own in named:
        if own.shape == parameter.shape and own.dtype is not parameter.dtype is torch.float32:
            raise ValueError(
                f"{kind} has a parameter of the shape {shape} in float32 that is not in the model, "
                f"whose {name} is {own.dtype}: masters of an optimizer's own are not supported. "
                "Keep the model itself in float32, and compute under torch.autocast"
            )
    raise ValueError(
        f"{kind} has a parameter of the shape {shape} that is not in the model: give join all "
        "modules that are trained, as a list"
    )


def check_states(
    optimizers: Sequence[torch.optim.Optimizer], others: Mapping[str, Any]
) -> None:
    """Raises if what is handed over to another worker could not be read there."""
    items = [(type(each).__name__, each) for each in optimizers]
    for name, item in [*items, *((f"state[{name!r}]", item) for name, item in others.items())]:
        try:
            read_state(write_state(item.state_dict()))
        except Exception as error:
            said = next((line for line in str(error).splitlines() if "Unsupported" in line), "")
            said = said or str(error).partition("\n")[0]
            raise TypeError(
                f"the state_dict of {name} cannot be handed over: it holds more than tensors, "
                f"numbers, texts, lists and dictionaries: {said.strip()}"
            ) from None
