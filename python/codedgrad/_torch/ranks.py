"""The ranks of a worker of several processes: what they say to each other, and sum."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

# What a rank says in one collective: eight bytes for its length, and then as much as fits; what is
# longer takes another collective.
_SLOT = 2048
_LENGTH = 8


class Ranks:
    """Those of a mesh, each of which computes a part of every unit's samples.

    What they say to each other goes through a gloo group of their own, so that it never waits for
    a device; gradients go through the mesh's groups.
    """

    def __init__(self, mesh: Any, data: Union[str, Sequence[str], None]):
        """Joins the ranks' own group, for which all of them must come here.

        Raises TypeError and ValueError for a mesh, or dimensions of it, that cannot be had.
        """
        _check(mesh, data)
        members = self._members = [int(member) for member in mesh.mesh.flatten()]
        if dist.get_rank() not in members:
            raise ValueError(
                f"mesh= has the ranks {members}, and this is rank {dist.get_rank()}: give each "
                "rank the mesh of its own worker"
            )
        self.size = len(members)
        self.rank = members.index(dist.get_rank())
        self._mesh = mesh
        # Groups have their members in the order of their numbers.
        order = sorted(members)
        self._places = [order.index(member) for member in members]
        all_ranks = len(members) == dist.get_world_size()
        self._group: Any = dist.new_group(
            order, backend="gloo", use_local_synchronization=not all_ranks
        )

    def gather(self, said: bytes, seconds: Optional[float] = None) -> List[bytes]:
        """What each rank says. Raises RuntimeError where one has died, or does not come in time."""
        head = torch.zeros(_SLOT, dtype=torch.uint8)
        content = len(said).to_bytes(_LENGTH, "little") + said
        _fill(head, content[:_SLOT])
        heads = [each.numpy().tobytes() for each in self._gather(head, seconds)]
        lengths = [int.from_bytes(each[:_LENGTH], "little") for each in heads]
        if max(lengths) <= _SLOT - _LENGTH:
            return [each[_LENGTH : _LENGTH + length] for each, length in zip(heads, lengths)]
        whole = torch.zeros(max(lengths), dtype=torch.uint8)
        _fill(whole, said)
        found = self._gather(whole, seconds)
        return [each.numpy().tobytes()[:length] for each, length in zip(found, lengths)]

    def _gather(self, mine: torch.Tensor, seconds: Optional[float]) -> List[torch.Tensor]:
        found = [torch.empty_like(mine) for _ in range(self.size)]
        work = dist.all_gather(found, mine, group=self._group, async_op=True)
        assert work is not None, "it is asked for"
        if seconds is None:
            work.wait()
        else:
            work.wait(timedelta(seconds=seconds))
        return [found[place] for place in self._places]

    def tell(self, lengths: Sequence[int], told: Sequence[bytes]) -> List[bytes]:
        """What the first rank tells all others, of these lengths; they say nothing."""
        found = []
        for place, length in enumerate(lengths):
            content = torch.empty(length, dtype=torch.uint8)
            if self.rank == 0:
                _fill(content, told[place])
            dist.broadcast(content, self._members[0], group=self._group)
            found.append(content.numpy().tobytes())
        return found

    def sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum of what all ranks have, on all of them; `numbers` may be written."""
        moved = self._moved(numbers)
        for group in self._groups():
            dist.all_reduce(moved, group=group)
        return moved.to(numbers.device)

    def spread(self, numbers: torch.Tensor) -> torch.Tensor:
        """What the first rank has, on all of them; `numbers` may be written."""
        # Formats that some backend does not know are bytes.
        moved = self._moved(numbers.view(torch.uint8))
        # Whose line begins with the first rank in all later dimensions, has it by those before.
        for group in self._groups():
            first = min(dist.get_process_group_ranks(group), key=self._place_of)
            dist.broadcast(moved, first, group=group)
        return moved.to(numbers.device).view(numbers.dtype)

    def _place_of(self, member: int) -> int:
        return self._members.index(member)

    def _groups(self) -> List[Any]:
        dimensions = range(self._mesh.ndim)
        return [self._mesh.get_group(each) for each in dimensions if self._mesh.size(each) > 1]

    def _moved(self, numbers: torch.Tensor) -> torch.Tensor:
        """The same where the mesh's groups take it."""
        on = self._mesh.device_type
        return numbers if numbers.device.type == on else numbers.to(on)


def _fill(tensor: torch.Tensor, content: bytes) -> None:
    if content:
        tensor[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _check(mesh: Any, data: Union[str, Sequence[str], None]) -> None:
    """Raises for what is no mesh, and where its ranks would not be replicas of each other."""
    if not (dist.is_available() and dist.is_initialized()):
        raise TypeError(
            "mesh= needs torch.distributed: "
            'torch.distributed.device_mesh.init_device_mesh("cuda", (ranks,)) in each rank that '
            "torchrun has started"
        )
    from torch.distributed.device_mesh import DeviceMesh

    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"mesh is {type(mesh).__name__}: it must be a DeviceMesh of this worker's ranks, "
            'init_device_mesh("cuda", (ranks,))'
        )
    if data is None:
        return
    names = list(mesh.mesh_dim_names or ())
    wanted = [data] if isinstance(data, str) else list(data)
    for name in wanted:
        if name not in names:
            raise ValueError(f"data names {name!r}, and the dimensions of mesh= are {names}")
    several = [name for place, name in enumerate(names) if mesh.size(place) > 1]
    others = [name for name in several if name not in wanted]
    if others:
        raise ValueError(
            f"the dimensions {others} of mesh= are not in data=: ranks that share a model, by "
            "tensor or pipeline parallelism, are not supported yet: replicated ranks only"
        )
