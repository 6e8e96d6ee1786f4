"""The parameters of a rank, and the way of its gradients through the worker's vector."""

from __future__ import annotations

import math
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

import torch
from torch import nn

from ... import _native
from ..._core.states import Progress
from ..._core.units import Micro
from ..arrays import TorchArrays
from ..fsdp import Sums, fsdp_modules, reshard
from ..host import Contents, OnHost, Transfer, combined, digests, numbers, plain
from ..parts import Part, content_of
from ..staging import transfer_of
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
        # Of a unit what the transfer has handed over.
        self._arrays: List[Any] = []

    def _transfer_of(self) -> Transfer:
        # The shared memory is there when the run is joined.
        return super()._transfer_of() if self._ranks.rank == 0 else OnHost(self._parameters)

    def joined(self, progress: Progress) -> None:
        if self._ranks.rank:
            views = [self._shared(owner, place) for place, owner in enumerate(self._vector.owners)]
            self._transfer = transfer_of(self._parameters, views)
        super().joined(progress)

    def ended(self) -> None:
        self._sums.close()

    def release(self) -> None:
        super().release()
        self._sums.close()
        self._vector.close()

    def _view(self, place: int) -> Any:
        """Where in the shared memory a parameter's gradient lies, if it does."""
        return self._vector.view(self._vector.owners[place], place)

    def collect(self, micro: Micro, native: _native.Worker) -> List[bool]:
        self._check_unit(micro)
        there = mine = [each.grad is not None for each in self._parameters]
        # Collectives of this package's own, which all ranks enter alike.
        sums = any(self._sums.left)
        if sums:
            there = self._cell.collected(mine)
            self._add_up(there)
        for part, owner in zip(self._parameters, self._vector.owners):
            if owner != self._ranks.rank:
                part.grad = None
        self._arrays = [None] * len(self._parameters)
        self._transfer.collect(self._keep)
        self._transfer.settle()
        if self._ranks.rank:
            self._write()
        if not sums:
            there = self._cell.collected(mine)
        if self._vector.others_hand_over and (sums or self._cell.differs):
            self._write_zeros(there)
            self._cell.handed_over()
        self._warn_of_graphs(there)
        if self._ranks.rank == 0:
            self._cell.take(self._taken(there), micro.coefficient / self._scale())
        self._arrays = []
        return there

    def _keep(self, first: int, arrays: List[Any]) -> None:
        self._arrays[first : first + len(arrays)] = arrays

    def _write(self) -> None:
        """Puts what this rank owns into the shared memory, unless it was staged there.

        The first rank has read the unit before: this gradient is of a collective that it was in.
        """
        for place, owner in enumerate(self._vector.owners):
            if owner == self._ranks.rank and self._arrays[place] is not None:
                self._copy(self._arrays[place], numbers(self._view(place)))

    def _write_zeros(self, there: Sequence[bool]) -> None:
        """The same for what only other ranks have a gradient of, once all have agreed on that."""
        for place, owner in enumerate(self._vector.owners):
            if owner == self._ranks.rank > 0 and there[place] and self._arrays[place] is None:
                numbers(self._view(place)).fill(0)

    @staticmethod
    def _copy(found: Any, into: Any) -> None:
        """Nothing where both are the same memory."""
        if found.__array_interface__["data"] != into.__array_interface__["data"]:
            into[...] = found

    def _taken(self, there: Sequence[bool]) -> List[Any]:
        """The worker's vector, of a unit in which some rank has a gradient of what is `there`."""
        found: List[Any] = []
        for owner, place in self._vector.order:
            if not there[place]:
                found.append(None)
            elif owner:
                found.append(numbers(self._shared(owner, place)))
            elif self._arrays[place] is None:
                # Another rank has one of its own part.
                like = self._parameters[place]
                found.append(numbers(torch.zeros(like.shape, dtype=like.dtype)))
            else:
                found.append(self._arrays[place])
        return found

    def _shared(self, owner: int, place: int) -> torch.Tensor:
        view = self._vector.view(owner, place)
        assert view is not None, "parts of other ranks are shared"
        return view

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
        first = self._ranks.rank == 0

        def give(place: int, arrays: List[Any]) -> None:
            self._cell.give(place, arrays, factor)
            for place, array in enumerate(arrays, place):
                if array is not None and (view := self._view(place)) is not None:
                    self._copy(array, numbers(view))

        def read(place: int, arrays: List[Any]) -> None:
            for place, array in enumerate(arrays, place):
                if array is not None:
                    self._copy(numbers(self._view(place)), array)

        if first:
            found = self._transfer.back(there, give)
            count = len(self._parameters)
            others = self._vector.order[count:]
            if others:
                views = [self._shared(*each) if there[each[1]] else None for each in others]
                arrays = [None if each is None else numbers(each) for each in views]
                self._cell.give(count, arrays, factor)
        self._cell.given()
        if not first:
            found = self._transfer.back(there, read)
        for part, gradient in zip(self._parameters, found):
            part.grad = gradient

    def applied(self) -> None:
        # An evaluation in the body has perhaps come before the optimizer's step.
        reshard(self._sharded)
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


def _in_float32(part: Part) -> torch.Tensor:
    """A gradient as it is summed; zeros where there is none."""
    gradient = part.grad
    if gradient is None:
        return torch.zeros(part.numel(), device=part.device)
    return plain(gradient, torch.float32).reshape(-1)
