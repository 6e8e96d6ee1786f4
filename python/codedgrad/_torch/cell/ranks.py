"""The ranks of a worker of several processes: what they say to each other, and sum."""

from __future__ import annotations

from datetime import timedelta
from math import prod
from typing import AbstractSet, Any, List, Optional, Sequence, Set, Union

import torch
import torch.distributed as dist

# What a rank says in one collective: eight bytes for its length, and then as much as fits; what is
# longer takes another collective.
_SLOT = 2048
_LENGTH = 8
# What dimensions of these names mean to PyTorch's trainers.
_UNSUPPORTED = {"cp": "context parallelism", "pp": "pipeline parallelism"}
# States are sent in pieces of so many bytes.
_PIECE = 64 << 20


class Ranks:
    """Those of a mesh, which compute every unit together: a part of its samples each, or a part of
    the model with others that have the same samples.

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
        # Over which dimensions samples are cut; ranks that differ in another one compute the same.
        self._names = list(mesh.mesh_dim_names or range(mesh.ndim))
        self._several = [each for each in range(mesh.ndim) if mesh.size(each) > 1]
        self._told_data = data is not None
        wanted = [data] if isinstance(data, str) else data
        self.data = [
            each for each in self._several if wanted is None or self._names[each] in wanted
        ]
        place = mesh.get_coordinate()
        #: Which part of a unit's samples this rank has, of how many.
        self.part, self.parts = 0, self.times(self.data)
        for each in self.data:
            self.part = self.part * mesh.size(each) + place[each]
        #: Whether what this rank reports counts: one of those that compute the same does.
        self.reports = all(place[each] == 0 for each in self._several if each not in self.data)
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

    def collect(self, lengths: Sequence[int], content: bytes) -> List[bytes]:
        """What each rank has, on the first one, of these lengths; nothing on the others."""
        if self.rank:
            self._send(content, 0)
            return []
        return [content, *(self._receive(lengths[each], each) for each in range(1, self.size))]

    def deal(self, lengths: Sequence[int], contents: Sequence[bytes]) -> bytes:
        """Gives each rank its own of what the first one has; `contents` is read there alone."""
        if self.rank:
            return self._receive(lengths[self.rank], 0)
        for each in range(1, self.size):
            self._send(contents[each], each)
        return contents[0]

    def _send(self, content: bytes, to: int) -> None:
        for start in range(0, len(content), _PIECE):
            piece = torch.frombuffer(bytearray(content[start : start + _PIECE]), dtype=torch.uint8)
            dist.send(piece, self._members[to], group=self._group)

    def _receive(self, length: int, source: int) -> bytes:
        found = bytearray(length)
        for start in range(0, length, _PIECE):
            size = min(_PIECE, length - start)
            piece = torch.frombuffer(found, dtype=torch.uint8, count=size, offset=start)
            dist.recv(piece, self._members[source], group=self._group)
        return bytes(found)

    def sum(self, numbers: torch.Tensor, dimensions: Sequence[int]) -> torch.Tensor:
        """The sum over some dimensions of the mesh; `numbers` may be written."""
        moved = self._moved(numbers)
        for dimension in dimensions:
            dist.all_reduce(moved, group=self._mesh.get_group(dimension))
        return moved.to(numbers.device)

    def beyond(self, name: str, ranks: AbstractSet[int]) -> List[int]:
        """The dimensions over which samples are cut, and not a parameter that is cut over `ranks`.

        Raises ValueError where the parameter is cut over a part of a dimension.
        """
        found = []
        for each in self.data:
            along = self.along(each)
            if along <= ranks:
                continue
            if len(along & ranks) > 1:
                raise ValueError(
                    f"parameter {name} is cut over the ranks {sorted(ranks)}, which are a part of the "
                    f"dimension {self._names[each]!r} of mesh=: give join the mesh of which that of "
                    "fully_shard is a dimension"
                )
            found.append(each)
        return found

    def along(self, dimension: int) -> Set[int]:
        """The ranks that differ from this one in a dimension alone, and this one."""
        return set(dist.get_process_group_ranks(self._mesh.get_group(dimension)))

    def names(self, dimensions: Sequence[int]) -> str:
        """What the mesh calls some dimensions."""
        return ", ".join(repr(self._names[each]) for each in dimensions) or "none"

    def times(self, dimensions: Sequence[int]) -> int:
        """How many ranks lie along some dimensions."""
        return prod(self._mesh.size(each) for each in dimensions)

    @property
    def members(self) -> Set[int]:
        """Their numbers in the process group."""
        return set(self._members)

    def check_data(self, name: str) -> None:
        """Raises ValueError where it is not said which ranks of a cut parameter have other samples."""
        if len(self._several) > 1 and not self._told_data:
            names = [self._names[each] for each in self._several]
            raise ValueError(
                f"parameter {name} is cut over ranks, and mesh= has several dimensions, {names}: say "
                "in data= over which of them samples are cut, by the names that mesh_dim_names gives "
                "them; ranks that differ in another one compute the same samples"
            )

    def _moved(self, numbers: torch.Tensor) -> torch.Tensor:
        """The same where the mesh's groups take it."""
        on = self._mesh.device_type
        return numbers if numbers.device.type == on else numbers.to(on)


def _fill(tensor: torch.Tensor, content: bytes) -> None:
    if content:
        tensor[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _check(mesh: Any, data: Union[str, Sequence[str], None]) -> None:
    """Raises for what is no mesh, and for dimensions that it does not have."""
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
    names = list(mesh.mesh_dim_names or ())
    for place, name in enumerate(names):
        if name in _UNSUPPORTED and mesh.size(place) > 1:
            raise ValueError(
                f"mesh= has the dimension {name!r}: {_UNSUPPORTED[name]} is not supported yet. Shard "
                "the model by fully_shard over the ranks instead"
            )
    if data is None:
        return
    wanted = [data] if isinstance(data, str) else list(data)
    for name in wanted:
        if name not in names:
            raise ValueError(f"data names {name!r}, and the dimensions of mesh= are {names}")
