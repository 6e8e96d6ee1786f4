"""The small language model of `sharded`, cut over the ranks of a worker in other ways than FSDP2
alone."""

from __future__ import annotations

from typing import Any, Dict, List

import torch
import torch.distributed as dist
from torch import nn

# By what the model is cut: the names of the mesh's dimensions, and those over which samples are.
CUTS: Dict[str, Any] = {
    "tensor": (["dp", "tp"], "dp"),
    "tensor and sequence": (["dp", "tp"], "dp"),
    "fsdp and tensor": (["dp", "tp"], "dp"),
    "hsdp": (["replicate", "shard"], ["replicate", "shard"]),
    "one of two": (["replicate", "shard"], ["replicate", "shard"]),
    "experts": (["edp", "ep"], ["edp", "ep"]),
    "plain experts": (["edp", "ep"], ["edp", "ep"]),
    "tensor and experts": (["dp", "tp"], "dp"),
}


class _Gathered(torch.autograd.Function):
    """The tokens of all ranks; backward the sum of what all ranks have of this one's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        found = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(found, x.contiguous(), group=group)
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        summed = gradient.contiguous().clone()
        dist.all_reduce(summed, group=ctx.group)
        return summed.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


class _Scattered(torch.autograd.Function):
    """The sum of what all ranks have, of this one's tokens; backward as it is gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        summed = x.contiguous().clone()
        dist.all_reduce(summed, group=group)
        return summed.chunk(dist.get_world_size(group))[dist.get_rank(group)].contiguous()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found = [torch.empty_like(gradient) for _ in range(dist.get_world_size(ctx.group))]
        dist.all_gather(found, gradient.contiguous(), group=ctx.group)
        return torch.cat(found), None


class Experts(nn.Module):
    """A token goes to one expert by its own numbers; experts may be on other ranks."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(9)
        self.weight = nn.Parameter(torch.randn(count, width, width, generator=generator) * 0.2)
        self.count, self.group, self.tensor = count, None, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tensor is not None:
            # Its ranks have the same tokens, and give a part of them to the experts each.
            return over_tokens(self.routed(over_tokens(x, self.tensor)), self.tensor, back=True)
        return self.routed(x)

    def routed(self, x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        ranks, rank = 1, 0
        if self.group is not None:
            ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
            x = _Gathered.apply(x, self.group)
        which = (x.detach()[:, 0] * 100).long().abs() % self.count
        weight: Any = self.weight
        own = weight.to_local() if hasattr(weight, "to_local") else weight
        found = torch.zeros_like(x)
        for expert in range(len(own)):
            chosen = (which == rank * (self.count // ranks) + expert).unsqueeze(1).to(x.dtype)
            found = found + (x @ own[expert]) * chosen
        if self.group is not None:
            found = _Scattered.apply(found, self.group)
        return found.reshape(shape)


def over_tokens(x: torch.Tensor, mesh: Any, back: bool = False) -> torch.Tensor:
    """A rank's part of the tokens that all ranks have; all tokens, of the parts, where it is `back`."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    ways: Any = (Replicate(), Shard(1))
    here, there = reversed(ways) if back else ways
    whole = DTensor.from_local(x, mesh, [here], run_check=False)
    found: torch.Tensor = whole.redistribute(placements=[there]).to_local()
    return found


class InSequence(nn.Module):
    """A norm of which each rank has some tokens: its gradient is a sum over the ranks."""

    def __init__(self, norm: nn.Module, mesh: Any) -> None:
        super().__init__()
        self.norm, self.mesh = norm, mesh

    def forward(self, x: torch.Tensor) -> Any:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        whole = DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)
        return self.norm(whole.redistribute(placements=[Shard(1)]))


def built(model: Any, plan: Dict[str, Any], mesh: Any) -> Any:
    """The model, cut over the mesh as `plan["cut"]` says; whole without one."""
    kind = plan["cut"]
    if "experts" in kind:
        for block in model.blocks:
            block.up, block.down = Experts(block.norm.normalized_shape[0]), nn.Identity()
    if mesh is None:
        return model
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    over = mesh
    if kind in ("plain experts", "tensor and experts"):
        experts = mesh["ep"] if "plain" in kind else mesh._flatten("ep")
        for block in model.blocks:
            cut_experts(block.up, experts)
            block.up.tensor = mesh["tp"] if "tensor" in kind else None
        if "tensor" in kind:
            whole = ColwiseParallel(output_layouts=Replicate())
            parallelize_module(model, mesh["tp"], {"head": whole})
        return model
    if "tensor" in kind:
        how: Dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if "sequence" in kind:
            how["up"] = ColwiseParallel(input_layouts=Shard(1))
            how["norm.norm"] = SequenceParallel()
        for block in model.blocks:
            if "sequence" in kind:
                block.norm = InSequence(block.norm, mesh["tp"])
            parallelize_module(block, mesh["tp"], how)
        if "fsdp" not in kind:
            return model
        over = mesh["dp"]
    if kind == "one of two":
        over = mesh["shard"]
    if kind == "experts":
        over = mesh._flatten("dp")
        for block in model.blocks:
            cut_experts(block.up, mesh["ep"])
            fully_shard(block.up, mesh=mesh["edp"])
    for block in model.blocks:
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    return model


def cut_experts(experts: Experts, mesh: Any) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    experts.group = mesh.get_group()
    experts.weight = nn.Parameter(distribute_tensor(experts.weight.data, mesh, [Shard(0)]))


def told(kind: str, **more: Any) -> Dict[str, Any]:
    """The plan of a run with a model that is cut so."""
    names, data = CUTS[kind]
    found: List[str] = list(names)
    return {"cut": kind, "names": found, **more, "join": {"data": data, **more.get("join", {})}}
