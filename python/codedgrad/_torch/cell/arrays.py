"""The parameters of a rank, and the way of its gradients through the worker's vector."""

from __future__ import annotations

import math
from typing import Any, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

import torch
from torch import nn

from ... import _native
from ..._core.states import Progress
from ..._core.units import Micro
from ..arrays import TorchArrays
from ..fsdp import Sums, fsdp_modules, reshard
from ..host import Contents, Decoded, Room, Transfer, Unit, combined, digests, plain, tensor_at
from ..memory import PageLocks, ways_of
from ..parts import Part, content_of
from ..staging import stream_of
from ..sums import Summing, on_device
from .worker import CellWorker

# So many numbers are summed over the mesh at once.
_BUCKET = 1 << 24


class CellArrays(TorchArrays):
    """What of the model a rank has."""

    def __init__(
        self,
        modules: List[nn.Module],
        optimizers: List[torch.optim.Optimizer],
        state: Mapping[str, Any],
        cell: CellWorker,
        sums: Sums,
        overlap: bool,
    ):
        self._cell = cell
        self._ranks = cell.ranks
        self._vector = cell.vector
        self._sums = sums
        self._sharded = fsdp_modules(modules)
        super().__init__(modules, optimizers, state, overlap)
        self._contents = [content_of(each.whole) for each in self._parameters]

    def _transfer_of(self) -> Transfer:
        device = self._parameters[0].device
        stream = None if device.type == "cpu" else stream_of(device)
        # Of memory that processes share CUDA alone page-locks what is there.
        locked = self._ranks.rank == 0 or device.type == "cuda"
        locks = PageLocks(device, ways_of(device) if locked else None)
        places, look = self._vector.places, self._cell.agreement.check
        transfer = Summing(self._parameters, stream, locks, places, look)
        if device.type != "cpu" and not on_device():
            transfer.to_host()
        return transfer

    def _handed_over(self) -> List[Part]:
        return [self._parameters[place] for place in self._vector.places]

    def ended(self) -> None:
        self._sums.close()

    def release(self) -> None:
        super().release()
        self._sums.close()
        self._vector.close()

    def _unit_of(self, micro: Micro, native: _native.Worker, factor: float) -> Unit:
        self._unit = _Unit(self._cell, micro, factor, self._overlap)
        return self._unit

    def collect(self, micro: Micro, native: _native.Worker) -> List[bool]:
        self._check_unit(micro)
        with self._cell.agreement.together():
            for part in self._parameters:
                part.reduce()
        there = mine = [each.grad is not None for each in self._parameters]
        # Collectives of this package's own, which all ranks enter alike.
        sums = any(self._sums.left)
        again = False
        if sums:
            there, _ = self._cell.collected(mine)
            self._add_up(there)
        self._transfer.collect()
        if micro.ends:
            # Others read it when all have come to the agreement behind it.
            self._transfer.settle()
        if not sums:
            there, again = self._cell.collected(mine, self._unit.again)
        elif micro.ends and self._vector.others_hand_over:
            self._cell.handed_over()
        self._warn_of_graphs(there)
        if micro.ends:
            self._unit.gather(again)
        return there

    def named(self, first: int, last: int) -> str:
        places = [place for _, place in self._vector.order[first : last + 1]]
        return super().named(min(places), max(places))

    def settle(self) -> Optional[bool]:
        finite = super().settle()
        return finite if self._vector.places else True

    def _add_up(self, there: Sequence[bool]) -> None:
        """Gradients that PyTorch does not sum over ranks with other samples become those of all."""
        mean = self._cell.scale() != 1.0
        for dimensions, bucket in self._buckets(there):
            with self._cell.agreement.together():
                found = torch.cat([_in_float32(each) for each in bucket])
                found = self._ranks.sum(found, dimensions)
            if mean:
                found.mul_(1.0 / self._ranks.times(dimensions))
            several = torch.split(found, [each.numel() for each in bucket])
            for part, summed in zip(bucket, several):
                part.grad = summed.view(part.shape).to(part.dtype)

    def _buckets(self, there: Sequence[bool]) -> Iterator[Tuple[List[int], List[Part]]]:
        """What is to be summed of what is `there`: dimensions, and parts of one format."""
        bucket: List[Part] = []
        room, before = 0, None
        dimensions: List[int] = []
        for part, has, left in zip(self._parameters, there, self._sums.left):
            if not has or not left:
                continue
            kind = part.dtype, left
            if bucket and (kind != before or part.numel() > room):
                yield dimensions, bucket
                bucket = []
            if not bucket:
                room, before, dimensions = _BUCKET, kind, left
            bucket.append(part)
            room -= part.numel()
        if bucket:
            yield dimensions, bucket

    def show(self, there: List[bool], factor: float, native: _native.Worker) -> None:
        self._stepping.shown += 1
        self.hide()
        # What an evaluation has left whole would be stale after the optimizer's step.
        reshard(self._sharded)
        decoded = _Decoded(self._cell, factor)
        decoded.share()
        self._cell.given()
        found = self._transfer.back(there, decoded)
        for part, gradient in zip(self._parameters, found):
            part.grad = gradient

    def applied(self) -> None:
        # An evaluation in the body has perhaps come before the optimizer's step.
        reshard(self._sharded)
        # Other ranks may write there when all have come to the next agreement.
        self._transfer.returned()
        super().applied()

    def norm(self) -> float:
        owned = [owner == self._ranks.rank for owner in self._vector.owners]
        own = self.squares(owned)
        return math.sqrt(math.fsum(self._cell.of_all("a norm", own)))

    def digest(self) -> int:
        # Ranks that have the whole model have the same one.
        return self._cell.digest_of(self.digests()) if self._cell.cut else combined(self.digests())

    def digests(self) -> Contents:
        return digests(self._contents, [each.detach() for each in self._parameters])

    def save(self) -> List[bytes]:
        return super().save() if self._cell.cut or self._ranks.rank == 0 else []

    def undo(self) -> Sequence[bytes]:
        return super().save()


class _Unit(Unit):
    """A unit whose gradient each rank adds up for its own parts.

    While the last one of a task is computed each rank says from which bucket on it has written its
    own, and the first one takes in what all have written.
    """

    def __init__(self, cell: CellWorker, micro: Micro, factor: float, early: bool):
        """early: take in what all have written before the backward pass is over."""
        super().__init__(cast("_native.Worker", cell), micro, factor, len(cell.vector.owners))
        self._cell = cell
        self._early = early and cell.in_parts()
        self._vector = cell.vector
        self._first = cell.ranks.rank == 0
        self._whole: Optional[torch.Tensor] = None
        # From which of its own parts on this rank has written, and from which bucket on the first
        # one has taken in what all have.
        self._begun = len(self._vector.places)
        self._taken = len(self._vector.buckets)
        #: Whether something was written again.
        self.again = False

    def room(self) -> Optional[Room]:
        if self._first:
            found = super().room()
            self._whole = None if found is None else found.memory
        if not self._begun:
            self._say(0)
        numbers = self._whole if self._first else self._vector.shared()
        return None if numbers is None else Room(self._vector.own(numbers), numbers)

    def _say(self, bucket: int) -> None:
        self._cell.ranks.mailbox.announce(len(self._vector.buckets) - bucket)

    def written(self, first: int, end: int) -> None:
        self.again = self.again or end > self._begun
        self._begun = min(first, self._begun)
        self._say(self._vector.written_from(self._begun))
        if self._first and self._early:
            count = len(self._vector.buckets)
            bucket = count - min(self._cell.ranks.mailbox.announced())
            if bucket < self._taken and self._whole is not None:
                arrays = [each.array for each in self._vector.buckets]
                arrays.append(len(self._vector.arrays))
                start, end = arrays[bucket], arrays[self._taken]
                self._take_in(bucket)
                self._cell.written(start, end)

    def gather(self, again: bool) -> None:
        """Of the first rank: takes in what others have written, and it has not yet; or all, if some
        of it was written `again`."""
        if again:
            self._taken = len(self._vector.buckets)
        if self._first and self._whole is not None:
            self._take_in(0)

    def _take_in(self, bucket: int) -> None:
        """Takes in what others have written, from one bucket on."""
        assert self._whole is not None
        shared = self._vector.shared()
        for each in self._vector.buckets[bucket : self._taken]:
            others = slice(each.others, each.end)
            self._whole[others].copy_(shared[others])
        self._taken = bucket


class _Decoded(Decoded):
    """What was decoded of a step, for all ranks."""

    def __init__(self, cell: CellWorker, factor: float):
        super().__init__(cast("_native.Worker", cell), factor)
        self._vector = cell.vector
        self._kept: Optional[_native.DecodedGradient] = (
            cell.decoded() if cell.ranks.rank == 0 else None
        )

    def share(self) -> None:
        """Of the first rank: writes what others have parts of."""
        if self._kept is not None:
            shared = self._vector.shared()
            numbers = tensor_at(self._kept.address, self._kept.numbers)
            for each in self._vector.needed:
                shared[each].copy_(numbers[each])

    def lies(self, parameters: Sequence[Part]) -> Tuple[object, torch.Tensor, List[torch.Tensor]]:
        numbers = self._vector.shared()
        if self._kept is not None:
            numbers = tensor_at(self._kept.address, self._kept.numbers)
        return self._kept, numbers, self._vector.sources(numbers)


def _in_float32(part: Part) -> torch.Tensor:
    """A gradient as it is summed; zeros where there is none."""
    gradient = part.grad
    if gradient is None:
        return torch.zeros(part.numel(), device=part.device)
    return plain(gradient, torch.float32).reshape(-1)
