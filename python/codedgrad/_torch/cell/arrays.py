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
from ..host import Contents, Decoded, Transfer, Unit, combined, digests, plain, tensor_at
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
    ):
        self._cell = cell
        self._ranks = cell.ranks
        self._vector = cell.vector
        self._sums = sums
        super().__init__(modules, optimizers, state, overlap=False)
        self._sharded = fsdp_modules(modules)
        self._contents = [content_of(each.whole) for each in self._parameters]

    def _transfer_of(self) -> Transfer:
        device = self._parameters[0].device
        stream = None if device.type == "cpu" else stream_of(device)
        # Of memory that processes share CUDA alone page-locks what is there.
        locked = self._ranks.rank == 0 or device.type == "cuda"
        locks = PageLocks(device, ways_of(device) if locked else None)
        transfer = Summing(self._parameters, stream, locks, self._vector.places)
        if device.type != "cpu" and not on_device():
            transfer.to_host()
        return transfer

    def ended(self) -> None:
        self._sums.close()

    def release(self) -> None:
        super().release()
        self._sums.close()
        self._vector.close()

    def _unit_of(self, micro: Micro, native: _native.Worker, factor: float) -> Unit:
        self._unit = _Unit(self._cell, micro, factor)
        return self._unit

    def collect(self, micro: Micro, native: _native.Worker) -> List[bool]:
        self._check_unit(micro)
        with self._cell.agreement.together():
            for part in self._parameters:
                part.reduce()
        there = mine = [each.grad is not None for each in self._parameters]
        # Collectives of this package's own, which all ranks enter alike.
        sums = any(self._sums.left)
        if sums:
            there = self._cell.collected(mine)
            self._add_up(there)
        self._transfer.collect()
        if micro.ends:
            # Others read it when all have come to the agreement behind it.
            self._transfer.settle()
        if not sums:
            there = self._cell.collected(mine)
        elif micro.ends and self._vector.others_hand_over:
            self._cell.handed_over()
        self._warn_of_graphs(there)
        if micro.ends:
            self._unit.gather()
        return there

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
    """A unit whose gradient each rank adds up for its own parts."""

    def __init__(self, cell: CellWorker, micro: Micro, factor: float):
        super().__init__(cast("_native.Worker", cell), micro, factor, len(cell.vector.owners))
        self._cell = cell
        self._whole: Optional[torch.Tensor] = None

    def room(self) -> Optional[torch.Tensor]:
        if self._cell.ranks.rank:
            return self._cell.vector.own()
        self._whole = super().room()
        return None if self._whole is None else self._whole[: self._cell.vector.first]

    def around(self, room: torch.Tensor) -> torch.Tensor:
        return self._cell.vector.shared()[1] if self._whole is None else self._whole

    def written(self, first: int, end: int) -> None:
        """The task is handed in when all ranks have written."""

    def gather(self) -> None:
        """Of the first rank: takes in what others have written."""
        if self._whole is not None:
            first = self._cell.vector.first
            start, shared = self._cell.vector.shared()
            self._whole[first:].copy_(shared[first - start :])


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
            start, shared = self._vector.shared()
            shared.copy_(tensor_at(self._kept.address, self._kept.numbers)[start:])

    def lies(self, parameters: Sequence[Part]) -> Tuple[object, torch.Tensor, List[torch.Tensor]]:
        start, numbers = self._vector.shared()
        if self._kept is not None:
            start, numbers = 0, tensor_at(self._kept.address, self._kept.numbers)
        return self._kept, numbers, self._vector.sources(start, numbers)


def _in_float32(part: Part) -> torch.Tensor:
    """A gradient as it is summed; zeros where there is none."""
    gradient = part.grad
    if gradient is None:
        return torch.zeros(part.numel(), device=part.device)
    return plain(gradient, torch.float32).reshape(-1)
