"""Which rank of a worker hands over which parts of the gradient, and the memory by which it does.

The worker's gradient is one vector of float32, in buckets: in a bucket lie the first rank's parts of
some parameters, then the second rank's of the same ones, and so on. So what is final early in the
backward pass lies together for all ranks, and is exchanged behind the rest of it. A part that several
ranks have alike is in the vector once: the first of them hands over its own, and all of them get what
is decoded. The first rank alone is connected to the run: it reads and writes the others' parts in
memory that all ranks of a host share, which is laid out as the vector is.
"""

from __future__ import annotations

import mmap
from math import prod
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..host import FORMATS
from ..parts import Part, content_of
from .files import shared
from .ranks import Ranks

_NUMBER = 4
# Numbers of a bucket, at least.
_BUCKET = 1 << 20


class Known(NamedTuple):
    """What a rank says of one of its parts."""

    content: object
    shape: Tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return prod(self.shape)


def known_of(parts: Sequence[Part]) -> List[Known]:
    """What this rank says of its parts."""
    return [Known(content_of(each.whole), tuple(each.shape), each.dtype) for each in parts]


class Bucket(NamedTuple):
    """Where the parts of some parameters lie in the vector."""

    #: Its first number, that of the first part which is not the first rank's, and its end.
    start: int
    others: int
    end: int
    #: Its first array, as the native worker is told them, and the first parameter.
    array: int
    place: int


class Vector:
    """The parts of all ranks, and the shared memory for them.

    All ranks make it alike, of what all of them say, and come to `share` before anything is read or
    written. After `share` a rank writes its `own` parts of the `shared` numbers, and an agreement
    later the first one reads them; of a decoded step the first one writes what is `needed`, and
    others read from `sources`.
    """

    def __init__(self, rank: int, said: Sequence[Sequence[Known]], bucket: int = 0):
        """bucket: it has at least so many numbers, but for the first; if not told, 2^20."""
        self._rank = rank
        count = len(said[0])
        first: Dict[Tuple[int, object], int] = {}
        holders: Dict[Tuple[int, object], int] = {}
        for each, parts in enumerate(said):
            for key in [(place, part.content) for place, part in enumerate(parts)]:
                first.setdefault(key, each)
                holders[key] = holders.get(key, 0) + 1
        #: For every part of this rank, which rank hands it over.
        self.owners = [first[place, said[rank][place].content] for place in range(count)]
        #: The places of this rank's own parts.
        self.places = [place for place, owner in enumerate(self.owners) if owner == rank]
        #: The vector: rank and place of every part in it.
        self.order: List[Tuple[int, int]] = []
        #: The same as the native worker is told it.
        self.arrays: List[Tuple[int, str]] = []
        #: Where the numbers of each part begin, by rank and place.
        self.starts: Dict[Tuple[int, int], int] = {}
        #: Numbers of all parts.
        self.end = 0
        self.buckets: List[Bucket] = []
        #: Which numbers another rank than the first has.
        self.needed: List[slice] = []
        for places in _cut([_numbers_of(said, first, each) for each in range(count)], bucket or _BUCKET):
            start, others, array = self.end, None, len(self.order)
            for each, parts in enumerate(said):
                if each and others is None:
                    others = self.end
                for place in places:
                    part = parts[place]
                    if first[place, part.content] == each:
                        self._add(each, place, part, each > 0 or holders[place, part.content] > 1)
            others = self.end if others is None else others
            self.buckets.append(Bucket(start, others, self.end, array, places[0]))
        self._memory: Any = None

    def _add(self, rank: int, place: int, part: Known, needed: bool) -> None:
        self.starts[rank, place] = self.end
        self.order.append((rank, place))
        self.arrays.append((part.numel, FORMATS[part.dtype]))
        if needed and self.needed and self.needed[-1].stop == self.end:
            self.needed[-1] = slice(self.needed[-1].start, self.end + part.numel)
        elif needed:
            self.needed.append(slice(self.end, self.end + part.numel))
        self.end += part.numel

    @property
    def others_hand_over(self) -> bool:
        """Whether a rank beside the first has a part of its own."""
        return any(rank for rank, _ in self.order)

    def written_from(self, first: int) -> int:
        """From which bucket on this rank's own parts are written, when all of them from the `first`
        one on are."""
        if first == 0:
            return 0
        before = self.places[first - 1]
        return sum(each.place <= before for each in self.buckets)

    def share(self, ranks: Ranks) -> None:
        """Makes the memory. All ranks come here; raises RuntimeError where some rank does not get
        it."""
        if self.end:
            self._memory = shared(ranks.tell, self._rank, _NUMBER * self.end, _mapped)

    def close(self) -> None:
        """Gives the memory back, once no tensor is in it any more."""
        self._memory = None

    def shared(self) -> torch.Tensor:
        """The numbers in the shared memory, laid out as the vector."""
        if not self.end:
            return torch.empty(0, dtype=torch.float32, device="cpu")
        return torch.frombuffer(self._memory, dtype=torch.float32, count=self.end)

    def own(self, numbers: torch.Tensor) -> List[torch.Tensor]:
        """Of the vector's numbers where this rank writes its own parts: one piece for each bucket."""
        found: List[List[int]] = []
        for start, numel in (
            (self.starts[self._rank, place], self.arrays[index][0])
            for index, (rank, place) in enumerate(self.order)
            if rank == self._rank
        ):
            if found and found[-1][1] == start:
                found[-1][1] += numel
            else:
                found.append([start, start + numel])
        return [numbers[start:end] for start, end in found]

    def sources(self, numbers: torch.Tensor) -> List[torch.Tensor]:
        """Where each of this rank's parts begins in the vector's numbers."""
        return [numbers[self.starts[owner, place] :] for place, owner in enumerate(self.owners)]


def _numbers_of(
    said: Sequence[Sequence[Known]], first: Dict[Tuple[int, object], int], place: int
) -> int:
    """How many numbers of a parameter are in the vector."""
    parts = [parts[place] for parts in said]
    return sum(each.numel for rank, each in enumerate(parts) if first[place, each.content] == rank)


def _cut(sizes: Sequence[int], least: int) -> List[List[int]]:
    """The places of parameters of such sizes, in groups of at least so many numbers, the last ones
    of the model first."""
    found: List[List[int]] = []
    room = 0
    for place in reversed(range(len(sizes))):
        if room <= 0:
            found.append([])
            room = least
        found[-1].insert(0, place)
        room -= sizes[place]
    return found[::-1]


def _mapped(path: str) -> mmap.mmap:
    with open(path, "r+b") as opened:
        return mmap.mmap(opened.fileno(), 0)
