"""The experts of `moe.py --shard`: each rank of a worker has some of them, and a part of the rest.

What it needs of PyTorch, 2.8 or newer, is imported for `--shard` alone.
"""

import functools
from typing import Any, Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor


def shard(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cuts experts over the ranks of a mesh; FSDP2 shards what else there is over the same ranks.

    By the name of the mesh's dimension, `ep`, codedgrad knows that tokens of all ranks come to an
    expert, and divides its gradient by their number where losses are means.
    """
    layers = [block.network for block in model.blocks]
    for layer in layers:
        layer.sharded, layer.experts = Sharded(layer.experts, mesh), nn.ModuleList()
    experts = {parameter for layer in layers for parameter in layer.sharded.parameters()}
    for module in (*model.blocks, model):
        fully_shard(module, mesh=mesh, ignored_params=experts)


class Sharded(nn.Module):
    """Experts of which each rank has equally many, and each rank's own tokens come to all of them."""

    def __init__(self, experts: Sequence[nn.Module], mesh: DeviceMesh):
        super().__init__()
        self.mesh, self.here = mesh, len(experts) // mesh.size()
        # One below the other: what was a bias has one dimension still, by which the optimizer
        # knows it.
        whole = [torch.cat(each).detach() for each in zip(*(e.parameters() for e in experts))]
        cut = (distribute_tensor(each, mesh, [Shard(0)]) for each in whole)
        self.numbers = nn.ParameterList(nn.Parameter(each) for each in cut)

    def forward(self, mixed: Any, *given: torch.Tensor) -> torch.Tensor:
        """All ranks' tokens come to the experts here, and each rank gets the sum for its own. Over
        many ranks a token would be sent to those alone that have its experts."""
        parts = zip(*(each.to_local().chunk(self.here) for each in self.numbers))
        experts = [functools.partial(expert, numbers) for numbers in parts]
        first = self.mesh.get_local_rank() * self.here
        y = mixed(experts, *(self.of_all_ranks(each) for each in given), first=first)
        whole = DTensor.from_local(y, self.mesh, [Partial()], run_check=False)
        return whole.redistribute(placements=[Shard(0)]).to_local()

    def of_all_ranks(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks; their gradient is the sum of what the ranks have of it."""
        whole = DTensor.from_local(rows, self.mesh, [Shard(0)], run_check=False)
        return whole.full_tensor(grad_placements=[Partial()])


def expert(numbers: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """What an expert of these weights and biases makes of its tokens."""
    up, up_bias, down, down_bias = numbers
    hidden = nn.functional.gelu(nn.functional.linear(x, up, up_bias))
    return nn.functional.linear(hidden, down, down_bias)
