"""The ranks of a worker of several processes: what they say to each other, and sum."""

from __future__ import annotations

import io
import os
from math import prod
from typing import AbstractSet, Any, Callable, Iterator, List, Optional, Sequence, Set, Union

import torch
import torch.distributed as dist

from ... import _native
from .files import shared

# What dimensions of these names mean to PyTorch's trainers.
_UNSUPPORTED = {"cp": "context parallelism", "pp": "pipeline parallelism"}
# States are sent in pieces of so many bytes.
_PIECE = 4 << 20


class Ranks:
    """Those of a mesh, which compute every unit together: a part of its samples each, or a part of
    the model with others that have the same samples.

    What they say to each other goes through memory of their host, once they `meet`, so that it
    never waits for a device; gradients go through the mesh's groups.
    """

    def __init__(self, mesh: Any, data: Union[str, Sequence[str], None]):
        """Raises TypeError and ValueError for a mesh, or dimensions of it, that cannot be had.
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
        self._mailbox: Optional[_native.Mailbox] = None
        # The file in which something is carried, and how many pieces were.
        self._tray: Optional[io.FileIO] = None
        self._carried = 0

    def meet(self) -> None:
        """Has the ranks hear each other from now on: all of them come here. Raises RuntimeError
        where they are not processes of one host."""
        size = _native.Mailbox.size(self.size)

        def opened(path: str) -> _native.Mailbox:
            return _native.Mailbox(path, self.rank, self.size)

        self._mailbox = shared(self._tell_over_the_mesh, self.rank, size, opened)

    def _tell_over_the_mesh(self, said: str) -> List[str]:
        """What each rank says, through the groups of the mesh."""
        found = {dist.get_rank(): said}
        for dimension in range(self._mesh.ndim):
            if self._mesh.size(dimension) > 1:
                several: List[Any] = [None] * self._mesh.size(dimension)
                dist.all_gather_object(several, found, group=self._mesh.get_group(dimension))
                found = {member: word for each in several for member, word in each.items()}
        return [found[member] for member in self._members]

    @property
    def mailbox(self) -> _native.Mailbox:
        assert self._mailbox is not None, "the ranks have met"
        return self._mailbox

    def gather(self, said: bytes, seconds: Optional[float] = None) -> List[bytes]:
        """What each rank says. Raises RuntimeError where one has died, or does not come in time."""
        return self.mailbox.gather(said, seconds)

    def carry(
        self, source: int, length: int, read: Callable[[int, int], Any]
    ) -> Iterator[bytes]:
        """What one rank has, piece by piece, on all of them: each goes through all pieces.

        read: gives, on that rank, so many bytes from one place on.
        """
        if self._tray is None:
            self._tray = shared(self.tell, self.rank, 2 * _PIECE, _opened)
        file = self._tray.fileno()
        for start in range(0, length, _PIECE):
            size = min(_PIECE, length - start)
            # Of two places: the other one is perhaps still read.
            place = _PIECE * (self._carried % 2)
            self._carried += 1
            if source == self.rank:
                os.pwrite(file, read(start, size), place)
            self.gather(b"")
            yield os.pread(file, size, place)

    def tell(self, said: str) -> List[str]:
        """The same of texts."""
        return [each.decode() for each in self.gather(said.encode())]

    def close(self) -> None:
        """Gives the memory back in which something was carried."""
        if self._tray is not None:
            self._tray.close()
            self._tray = None

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


def _opened(path: str) -> io.FileIO:
    return io.FileIO(path, "r+")


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
