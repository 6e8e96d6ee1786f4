"""What of a model is trained, by which names its parts are called, and what of it replicas share.

What `join` refuses is refused here: models, optimizers and states that cannot be replicated exactly;
each error names the part and the cure. What all workers of a run must have in common beside the
model is here, as far as it changes bits, and a replica of a model as a state, which a worker that
falls behind takes over.
"""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from typing import AbstractSet, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, Union

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from .._core.states import Progress
from .fsdp import check_fsdp, fsdp_modules, reshard
from .host import FORMATS, read_state, write_state
from .parts import all_restored, is_cut, ranks_of, restored, with_parts

# Models that are in a run that goes on: each can be in one only.
_JOINED: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Progress]]" = weakref.WeakKeyDictionary()


def own_name(name: str) -> str:
    """A parameter's name as it is without `torch.compile`."""
    return name.replace("_orig_mod.", "")


def modules_of(model: Union[nn.Module, Sequence[nn.Module]]) -> List[nn.Module]:
    """What the user calls the model, as a list; raises TypeError for what is none."""
    several = not isinstance(model, nn.Module) and hasattr(model, "__iter__")
    # What the user has handed over: it is looked at before it is called a module.
    modules: List[Any] = list(model) if several else [model]  # type: ignore[arg-type]
    for module in modules:
        if isinstance(module, torch.optim.Optimizer):
            raise TypeError(
                f"model is {type(module).__name__}, an optimizer: the model comes first, "
                "join(model, optimizer, ..)"
            )
        if any(kind.__module__.startswith("torch.distributed.pipelining") for kind in type(module).__mro__):
            raise TypeError(
                f"model is {type(module).__name__}, a part of a pipeline: pipeline parallelism is not "
                "supported yet. Shard the whole model by fully_shard, and give join mesh="
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


def check_model(
    modules: Sequence[nn.Module],
    named: Sequence[Tuple[str, nn.Parameter]],
    ranks: Optional[AbstractSet[int]] = None,
) -> None:
    """Raises for what cannot be replicated exactly, by one process, or by these ranks of a worker."""
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
    if ranks is None and torch.distributed.is_available() and torch.distributed.is_initialized():
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
    if ranks is not None:
        check_fsdp(modules, named)
    for name, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise TypeError(f"parameter {name} has no shape yet: run the model once before join")
        if is_cut(parameter):
            _check_cut(name, parameter, ranks)
        elif type(parameter.data) is not torch.Tensor:
            raise TypeError(
                f"parameter {name} is a {type(parameter.data).__name__}, which cannot be coded: "
                "parameters are plain tensors or DTensors. Join with the model as it is before it "
                "is quantised or wrapped"
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
    if kind == "FullyShardedDataParallel":
        raise TypeError(
            f"{path} is sharded by FSDP1 ({kind}), whose shards have no names: shard it by FSDP2, "
            "torch.distributed.fsdp.fully_shard, and join with mesh="
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


def _check_cut(name: str, parameter: Any, ranks: Optional[AbstractSet[int]]) -> None:
    """Raises for a DTensor that ranks of this worker do not cut among themselves."""
    over = ranks_of(parameter)
    if ranks is None:
        raise TypeError(
            f"parameter {name} is cut over the ranks {sorted(over)}: give join mesh=, the mesh of all "
            "ranks of this worker"
        )
    if not over <= ranks:
        raise TypeError(
            f"parameter {name} is cut over the ranks {sorted(over)}, and mesh= has {sorted(ranks)}: "
            "give join the mesh of all ranks of this worker, and in data= the dimensions over which "
            "samples are cut"
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
            read_state(write_state(with_parts(item.state_dict())))
        except Exception as error:
            said = next((line for line in str(error).splitlines() if "Unsupported" in line), "")
            said = said or str(error).partition("\n")[0]
            raise TypeError(
                f"the state_dict of {name} cannot be handed over: it holds more than tensors, "
                f"numbers, texts, lists and dictionaries: {said.strip()}"
            ) from None


# A group's settings by which PyTorch chooses how a step is computed.
_WAYS = ("fused", "foreach", "capturable")


def kinds_of(optimizers: Sequence[torch.optim.Optimizer]) -> List[Tuple[str, List[List[str]]]]:
    """The types of some optimizers, and how each of their groups is computed."""
    return [
        (type(each).__name__, [_ways_of(group) for group in each.param_groups])
        for each in optimizers
    ]


def _ways_of(group: Dict[str, Any]) -> List[str]:
    """Those of a group's ways that are on, unless told, as PyTorch chooses them."""
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
        """All of it that this process has; names are those without `torch.compile`."""
        reshard(fsdp_modules(self._modules))
        models = [
            {own_name(name): value for name, value in module.state_dict().items()}
            for module in self._modules
        ]
        content = {
            "models": models,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "state": {name: item.state_dict() for name, item in self._state.items()},
        }
        return [write_state(with_parts(content))]

    def load(self, state: Sequence[bytes]) -> None:
        """Takes over what `save` gave."""
        if not state:
            raise ValueError("its worker has another number of ranks")
        reshard(fsdp_modules(self._modules))
        content = read_state(state[0])
        for module, found in zip(self._modules, content["models"]):
            own = module.state_dict()
            names = {own_name(name): name for name in own}
            found = {names.get(name, name): value for name, value in found.items()}
            module.load_state_dict(
                {name: restored(value, own.get(name)) for name, value in found.items()}
            )
        for optimizer, found in zip(self._optimizers, content["optimizers"]):
            _load_optimizer(optimizer, found)
        for name, item in self._state.items():
            found = content["state"][name]
            item.load_state_dict(all_restored(found, item.state_dict()))

    def fingerprint(self) -> object:
        """The numbers and texts in `state=`, which the end of a step's body changes."""
        return [repr(_without_tensors(item.state_dict())) for item in self._state.values()]


def _load_optimizer(optimizer: torch.optim.Optimizer, found: Dict[str, Any]) -> None:
    """Loads an optimizer's state as it was saved: PyTorch rounds it to the parameters' format."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for place, saved in found["state"].items():
        for name, value in saved.items():
            saved[name] = all_restored(value, parameters[place])
    optimizer.load_state_dict(found)
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
