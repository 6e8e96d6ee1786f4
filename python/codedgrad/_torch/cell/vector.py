"""Which rank of a worker hands over which parts of the gradient, and the memory by which it does.

The worker's gradient is one vector of float32: the parts of the first rank, then those of the
second, and so on. A part that several ranks have alike is in it once: the first of them hands over
its own, and all of them get what is decoded. The first rank alone is connected to the run: it reads
and writes the others' parts in memory that all ranks of a host share, which is laid out as the
vector is.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import tempfile
from math import prod
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ..host import FORMATS
from ..parts import Part, content_of
from .ranks import Ranks

_NUMBER = 4
# Bytes that a rank's last word may have, its length before it.
_WORD = 4096
_LENGTH = 8


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


class Vector:
    """The parts of all ranks, and the shared memory of those that not only the first rank has.

    All ranks make it alike, of what all of them say, and come to `share` before anything is read or
    written. After `share` a rank writes its own parts to `own`, and an agreement later the first one
    reads them; of a decoded step the first one writes, and others read from `sources`.
    """

    def __init__(self, rank: int, said: Sequence[Sequence[Known]]):
        self._rank = rank
        self._said = said
        self._ranks = len(said)
        count = len(said[0])
        first: Dict[Tuple[int, object], int] = {}
        holders: Dict[Tuple[int, object], int] = {}
        for each, parts in enumerate(said):
            for key in [(place, part.content) for place, part in enumerate(parts)]:
                first.setdefault(key, each)
                holders[key] = holders.get(key, 0) + 1
        #: For every part of this rank, which rank hands it over.
        self.owners = [first[place, said[rank][place].content] for place in range(count)]
        #: The vector: rank and place of every part in it. Those of the first rank come first.
        self.order = [
            (each, place)
            for each, parts in enumerate(said)
            for place, part in enumerate(parts)
            if first[place, part.content] == each
        ]
        #: The same as the native worker is told it.
        self.arrays = [
            (self._of(*each).numel, FORMATS[self._of(*each).dtype]) for each in self.order
        ]
        #: Where the numbers of each part begin, by rank and place.
        self.starts: Dict[Tuple[int, int], int] = {}
        #: Numbers of the first rank's own parts, and of all.
        self.first = self.end = 0
        # Numbers that lie in the shared memory: from the first one that another rank has.
        self._shared: Optional[int] = None
        for owner, place in self.order:
            part = self._of(owner, place)
            self.starts[owner, place] = self.end
            if self._shared is None and (owner or holders[place, part.content] > 1):
                self._shared = self.end
            self.end += part.numel
            self.first = self.first if owner else self.end
        self._words = 0 if self._shared is None else _NUMBER * (self.end - self._shared)
        #: The places of this rank's own parts.
        self.places = [place for owner, place in self.order if owner == rank]
        self._memory: Any = None

    @property
    def others_hand_over(self) -> bool:
        """Whether a rank beside the first has a part of its own."""
        return self.first < self.end

    def _of(self, rank: int, place: int) -> Known:
        return self._said[rank][place]

    def share(self, ranks: Ranks) -> Optional[str]:
        """Makes the memory. All ranks come here; gives back why some rank does not get it."""
        size = self._words + _WORD * self._ranks
        path, trouble, file = "", "", -1
        if self._rank == 0:
            try:
                path, file = _made(size)
                self._memory = mmap.mmap(file, size)
            except (OSError, ValueError) as error:
                trouble = str(error)
        told = ranks.gather(f"{trouble}\n{socket.gethostname()}\n{path}".encode())[0].decode()
        trouble, host, path = told.split("\n", 2)
        if self._rank and not trouble:
            try:
                if host != socket.gethostname():
                    raise OSError(f"rank 0 is on {host}, and this one on {socket.gethostname()}")
                with open(path, "r+b") as opened:
                    self._memory = mmap.mmap(opened.fileno(), size)
            except (OSError, ValueError) as error:
                trouble = str(error)
        troubles = [each.decode() for each in ranks.gather(trouble.encode())]
        if file >= 0:
            # The memory goes with the last process that has it.
            os.close(file)
            with contextlib.suppress(OSError):
                if not path.startswith("/proc/"):
                    os.remove(path)
        for rank, each in enumerate(troubles):
            if each:
                return (
                    f"rank {rank} of this worker does not get {size} bytes of memory shared with the "
                    f"others ({each}): all ranks of a worker are processes of one host"
                )
        return None

    def close(self) -> None:
        """Gives the memory back, once no tensor is in it any more."""
        self._memory = None

    def shared(self) -> Tuple[int, torch.Tensor]:
        """Where in the vector the shared memory begins, and its numbers."""
        if self._shared is None or self._shared == self.end:
            return self.end, torch.empty(0, dtype=torch.float32, device="cpu")
        count = self.end - self._shared
        return self._shared, torch.frombuffer(self._memory, dtype=torch.float32, count=count)

    def own(self) -> torch.Tensor:
        """Where another rank than the first writes its own parts."""
        start, numbers = self.shared()
        own = [(self._rank, place) for place in self.places]
        if not own:
            return numbers[:0]
        first = self.starts[own[0]]
        count = sum(self._of(*each).numel for each in own)
        return numbers[first - start : first - start + count]

    def sources(self, start: int, numbers: torch.Tensor) -> List[torch.Tensor]:
        """Where each of this rank's parts begins in numbers of the vector, from `start` on."""
        return [
            numbers[self.starts[owner, place] - start :] for place, owner in enumerate(self.owners)
        ]

    # Last words: what a rank that ends says to the first one, which may wait for it in a collective.

    def say(self, word: bytes) -> None:
        """This rank's last word, if it is short enough."""
        memory = self._memory
        if memory is None or len(word) > _WORD - _LENGTH:
            return
        start = self._words + _WORD * self._rank + _LENGTH
        memory[start : start + len(word)] = word
        # It is there when its length is.
        memory[start - _LENGTH : start] = len(word).to_bytes(_LENGTH, "little")

    def heard(self) -> List[Tuple[int, bytes]]:
        """The last words of other ranks."""
        found: List[Tuple[int, bytes]] = []
        memory = self._memory
        if memory is None:
            return found
        for rank in range(self._ranks):
            start = self._words + _WORD * rank + _LENGTH
            length = int.from_bytes(memory[start - _LENGTH : start], "little")
            if length and rank != self._rank:
                found.append((rank, bytes(memory[start : start + length])))
        return found


def _made(size: int) -> Tuple[str, int]:
    """Memory of this host: by which path other processes open it, and the open file."""
    if hasattr(os, "memfd_create"):
        # Without a name: it needs no room in /dev/shm, and nothing is left after SIGKILL.
        file = os.memfd_create("codedgrad")
        path = f"/proc/{os.getpid()}/fd/{file}"
    else:
        file, path = tempfile.mkstemp(prefix="codedgrad")
    os.truncate(file, size)
    if hasattr(os, "posix_fallocate"):
        # Too little memory is an error here, and no signal later.
        os.posix_fallocate(file, 0, size)
    return path, file
