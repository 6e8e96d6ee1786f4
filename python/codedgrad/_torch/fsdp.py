"""FSDP2 within a worker: by what it divides gradients, and when its parameters are whole.

The only module that knows FSDP2's private names. A process that has not imported FSDP2 does not
import it here.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
from torch import nn

from .cell.ranks import Ranks
from .parts import is_cut, ranks_of

#: What FSDP2 must let a caller say: by what gradients are divided, and that they are summed before.
_NEEDED = ("set_gradient_divide_factor", "set_force_sum_reduction_for_comms")
_OLDEST = "2.8"
# What PyTorch's trainers call the dimension of a mesh over which experts are cut.
_EXPERTS = "ep"
# What is asked of its parameter groups.
_NAMES = (
    "fsdp_params",
    "mesh_info",
    "is_sharded",
    "_all_gather_result",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
)


def fsdp_modules(modules: Sequence[nn.Module]) -> List[Any]:
    """Those of them, and in them, that `fully_shard` was called for, each once."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None:
        return []
    found = {
        id(each): each for root in modules for each in root.modules() if isinstance(each, kind)
    }
    return list(found.values())


def _groups_of(module: Any) -> List[Any]:
    """The parameter groups of a module, whose gradients are summed together."""
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    single = getattr(state, "_fsdp_param_group", None)
    return [] if single is None else [single]


def check_fsdp(modules: Sequence[nn.Module], named: Sequence[Tuple[str, Any]]) -> None:
    """Raises TypeError for an FSDP2 that cannot be told how it sums, or is unknown here, and for
    parameters that it keeps on the host and computes with elsewhere."""
    names = {id(parameter): name for name, parameter in named}
    for module in fsdp_modules(modules):
        missing = [name for name in _NEEDED if not hasattr(module, name)]
        if missing:
            raise TypeError(
                f"the FSDP2 of PyTorch {torch.__version__} has no {missing[0]}, by which a worker's "
                f"ranks say how gradients are summed: install PyTorch {_OLDEST} or newer"
            )
        for group in _groups_of(module):
            missing = [name for name in _NAMES if not hasattr(group, name)]
            if missing:
                raise TypeError(
                    f"the FSDP2 of PyTorch {torch.__version__} is not known to this codedgrad: its "
                    f"parameter groups have no {missing[0]}. Install another version of either"
                )
            for each in group.fsdp_params:
                if getattr(each, "offload_to_cpu", False):
                    name = names.get(id(each.sharded_param), type(module).__name__)
                    raise TypeError(
                        f"parameter {name} is sharded with CPUOffloadPolicy, which is not supported: "
                        "leave offload_policy out of fully_shard"
                    )


def reshard(sharded: Sequence[Any]) -> None:
    """Has the parameters of some `fsdp_modules` be those that the optimizer has.

    FSDP2 leaves some of them whole after a forward pass without a backward pass, such as an
    evaluation's. Where the optimizer's step comes next the whole ones would be stale, and the next
    micro-batch would be computed with them.
    """
    for module in sharded:
        groups = _groups_of(module)
        for group in groups:
            # A loop has begun to gather them for a forward pass that was skipped.
            if group._all_gather_result is not None:
                group.wait_for_unshard()
        if not all(group.is_sharded for group in groups):
            module.reshard()


def _is_of_experts(parameter: Any) -> bool:
    """Whether a DTensor says by the names of its mesh that the model's backward pass sums its gradient
    over all ranks that have a part of it. Its placements alone are those of tensor parallelism."""
    names = parameter.device_mesh.mesh_dim_names or ()
    return _EXPERTS in names and not any(each.is_replicate() for each in parameter.placements)


def _divided(by: float, gradient: Any) -> Any:
    return gradient / by


class Sums:
    """Over which dimensions of the mesh gradients are summed, by FSDP2 and by the worker's ranks.

    While it is open FSDP2 divides by what the reduction asks for, and so are gradients of experts
    that it does not have; `close` gives back what was set.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        named: Sequence[Tuple[str, Any]],
        ranks: Ranks,
        reduction: str,
    ):
        """Raises TypeError and ValueError, by name, for gradients that would be summed wrongly."""
        #: For each parameter the dimensions over which the ranks sum it, since PyTorch does not.
        self.left: List[List[int]] = []
        self._undo: List[Callable[[], None]] = []
        handled = {
            id(each.sharded_param): group
            for module in fsdp_modules(modules)
            for group in _groups_of(module)
            for each in group.fsdp_params
        }
        #: Whether FSDP2 alone makes every gradient, which is final then within the backward pass.
        self.all_by_fsdp = all(id(parameter) in handled for _, parameter in named)
        try:
            self._begin(named, handled, ranks, reduction)
        except BaseException:
            self.close()
            raise
        self.all_by_fsdp = self.all_by_fsdp and not any(self.left)

    def _begin(
        self,
        named: Sequence[Tuple[str, Any]],
        handled: Dict[int, Any],
        ranks: Ranks,
        reduction: str,
    ) -> None:
        needed: Dict[int, Tuple[Any, float, str]] = {}
        for name, parameter in named:
            if not is_cut(parameter):
                self.left.append(list(ranks.data))
                continue
            ranks.check_data(name)
            left = ranks.beyond(name, ranks_of(parameter))
            self.left.append(left)
            within = [each for each in ranks.data if each not in left]
            group = handled.get(id(parameter))
            self._check_group(name, parameter, group, within, ranks)
            # FSDP2 sums over its own mesh; over what else cuts the parameter and the samples, as
            # under expert parallelism, the model's own backward pass does.
            summed = ranks.times(within)
            factor = float(summed) if reduction == "mean" else 1.0
            if group is None:
                if factor != 1.0:
                    hook = parameter.register_hook(partial(_divided, factor))
                    self._undo.append(hook.remove)
                continue
            _, other, first = needed.setdefault(id(group), (group, factor, name))
            if other != factor:
                raise ValueError(
                    f"parameters {first} and {name} are one group of FSDP2, and are summed over "
                    f"{other:g} and {factor:g} ranks of data=: shard their modules separately"
                )
        for group, factor, name in needed.values():
            self._divide(group, factor, name, reduction)

    @staticmethod
    def _check_group(
        name: str, parameter: Any, group: Any, within: Sequence[int], ranks: Ranks
    ) -> None:
        """Raises ValueError where it is not known who sums a parameter's gradient over the
        dimensions of data= within its mesh: one group of FSDP2 has it, or none."""
        if group is None:
            if within and not _is_of_experts(parameter):
                raise ValueError(
                    f"parameter {name} is cut over {ranks.names(within)}, where data= says that "
                    "samples are cut too, and fully_shard does not have it: leave them out of data= "
                    "if these ranks compute the same samples, as under tensor parallelism; use "
                    f"fully_shard; or name a dimension of its mesh {_EXPERTS!r}, and replicate it over "
                    "none, if each rank has experts that tokens of all these ranks come to"
                )
            return
        members = {int(each) for each in group.mesh_info.mesh.mesh.flatten()}
        along = [each for each in within if ranks.along(each) <= members]
        if ranks.times(along) != len(members):
            raise ValueError(
                f"parameter {name} is sharded by fully_shard over the ranks {sorted(members)}, and "
                f"of those data= cuts the samples over {ranks.names(along)} alone: ranks that "
                "compute the same samples would be summed. Name all dimensions of fully_shard's mesh "
                "in data="
            )

    def _divide(self, group: Any, factor: float, name: str, reduction: str) -> None:
        before = group.gradient_divide_factor, group.force_sum_reduction_for_comms
        if before[0] is not None and before[0] != factor:
            raise ValueError(
                f"set_gradient_divide_factor({before[0]:g}) is set where {name} is, and "
                f'reduction="{reduction}" needs {factor:g} here: leave it out, or, where losses are '
                'sums, join with reduction="sum" or "tokens"'
            )

        if factor != 1.0 and getattr(group.mesh_info, "shard_mesh_size", 0) == 1:
            raise TypeError(
                f"{name} is sharded over one rank, where the FSDP2 of PyTorch 2.10 to 2.15 divides "
                "gradients twice: leave fully_shard out, and give the same mesh to join"
            )

        def undo() -> None:
            group.gradient_divide_factor, group.force_sum_reduction_for_comms = before

        self._undo.append(undo)
        # A sum, and then a division: gloo's mean is a sum in some versions (pytorch#162338), and
        # NCCL's sum of products gives zeros for bfloat16 (pytorch#190745).
        group.gradient_divide_factor, group.force_sum_reduction_for_comms = factor, True

    def close(self) -> None:
        """FSDP2 divides as before."""
        undo, self._undo = self._undo, []
        for each in undo:
            each()
