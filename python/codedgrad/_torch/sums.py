"""Gradients of a task's units, added up where they are computed: the host gets the sum alone.

The sum is the library's tree over the numbers of units (`codedgrad::gpu::Combine`), so that its bits
are those of the host: partial sums of `2^m` units are added as soon as they are the halves of an
aligned block, what is left at the end from right to left. A gradient is widened to float32, multiplied,
and only then added: a fused multiply-add would round otherwise.

While the last unit's backward pass goes on its sum goes straight into the task's message, and what is
decoded comes straight from where it was decoded: each is one copy of the device's, if the memory is
page-locked (`memory`). Between units nothing is handed over.

Where the device has no room for partial sums, the host adds up the task that was begun, and what
follows goes by another way (`Transfer.gave_up`).
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch

from .._core.warn import warn
from .host import Decoded, HostMemory, OnHost, Room, Transfer, Unit
from .memory import PageLocks, ways_of
from .parts import Part
from .staging import Fetched, HandingOver, Staging, event_of, fetch_of, is_same, stream_of, wait_for

#: How gradients leave an accelerator: "device", by sums that are made there, or "host", each unit's
#: for the host to add up.
VARIABLE = "CODEDGRAD_STAGING"

_INFINITY = float("inf")
# How long a run that is left waits for the device's last copies.
_LAST_SECONDS = 1.0


def transfer_of(parameters: Sequence[Part]) -> Transfer:
    """The way of the gradients of parameters that are all on one device."""
    if parameters[0].device.type == "cpu":
        return OnHost(parameters)
    device = parameters[0].device
    summed, stream = on_device(), stream_of(device)
    if stream is None or not summed:
        return Staging(parameters, stream)
    return Summing(parameters, stream, PageLocks(device, ways_of(device)))


def on_device() -> bool:
    """Whether gradients of an accelerator are added up there, as far as the user has asked."""
    asked = os.environ.get(VARIABLE, "device")
    if asked not in ("device", "host"):
        raise ValueError(
            f"{VARIABLE} is {asked!r}: it is device, which adds gradients up where they are "
            "computed, or host"
        )
    return asked == "device"


class Tree:
    """Partial sums of consecutive units' gradients, each one vector in the order of some parameters.

    `add` comes for every unit of a task but its last, in ascending order, and `total` for the last
    one, all at once or some parameters after the other. `clear` before a task.
    """

    def __init__(self, parameters: Sequence[Part]):
        self._parameters = list(parameters)
        #: Where the numbers of each parameter begin, and where they all end.
        self.starts = [0]
        for part in self._parameters:
            self.starts.append(self.starts[-1] + part.numel())
        self._device = parameters[0].device if parameters else torch.device("cpu")
        # Each with its first unit and how many it has.
        self._partial: List[Tuple[int, int, torch.Tensor]] = []

    def clear(self) -> None:
        self._partial = []

    @property
    def is_empty(self) -> bool:
        """Whether no unit was added."""
        return not self._partial

    def add(self, unit: int, gradients: Sequence[Optional[torch.Tensor]], factor: float) -> None:
        """Adds a unit's gradients times a factor. Changes nothing where there is no room."""
        new = self._weighted(0, len(self._parameters), gradients, factor)
        self._partial.append((unit, 1, new))
        while len(self._partial) > 1:
            (left, size, numbers), (right, other, more) = self._partial[-2:]
            if size != other or left % (2 * size) or left + size != right:
                break
            numbers.add_(more)
            self._partial[-2:] = [(left, 2 * size, numbers)]

    def total(
        self, first: int, end: int, gradients: Sequence[Optional[torch.Tensor]], factor: float
    ) -> torch.Tensor:
        """The sum of all units for some parameters, with the last unit's gradients, as a new vector:
        it can be asked for again with others."""
        found = self._weighted(first, end, gradients, factor)
        numbers = slice(self.starts[first], self.starts[end])
        for _, _, partial in reversed(self._partial):
            found.add_(partial[numbers])
        return found

    def to_host(self) -> None:
        """Keeps them in the host's memory from now on."""
        self._device = torch.device("cpu")
        self._partial = [(unit, size, each.cpu()) for unit, size, each in self._partial]

    def _weighted(
        self, first: int, end: int, gradients: Sequence[Optional[torch.Tensor]], factor: float
    ) -> torch.Tensor:
        parts = self._parameters[first:end]
        found = torch.empty(
            self.starts[end] - self.starts[first], dtype=torch.float32, device=self._device
        )
        views = torch.split(found, [part.numel() for part in parts]) if parts else ()
        into, of, zeros = [], [], []
        for part, view, gradient in zip(parts, views, gradients):
            if gradient is None:
                zeros.append(view)
            else:
                into.append(view.view(part.shape))
                of.append(gradient.to(self._device))
        if into:
            torch._foreach_copy_(into, of)
        if factor != 1.0:
            found.mul_(factor)
        # Behind the product, which would give them the factor's sign.
        for view in zeros:
            view.zero_()
        return found


class Summing(Transfer):
    """The way of a task's sum, made where the gradients are.

    Of a unit come `begin` and `collect`, of a task's last one `out` between them, and then `settle`.
    """

    def __init__(
        self,
        parameters: Sequence[Part],
        stream: Optional[torch.Stream],
        locks: PageLocks,
        places: Optional[Sequence[int]] = None,
        look: Callable[[], None] = lambda: None,
    ):
        """places: of which parameters gradients are handed over, if not of all; all of them get what
        is decoded. stream: for copies; None where the gradients are in the host's memory. look: see
        `HandingOver`."""
        super().__init__()
        self._all = list(parameters)
        self._parameters = self._all if places is None else [self._all[each] for each in places]
        self._device = self._all[0].device
        self._stream = stream
        self._locks = locks
        self._tree = Tree(self._parameters)
        # The current unit, and where the sum goes, if it is a task's last.
        self._unit: Optional[Unit] = None
        self._room: Optional[Room] = None
        # Gradients of the last unit that are on their way, with what their versions were then, and
        # from which place on they are.
        self._fetched: List[Optional[Fetched]] = []
        self._begun = 0
        # The largest magnitudes in parts of the sum, by which it is known whether all is finite, with
        # what is behind each; where the host reads it, once it is asked for; and what was found.
        self._largest: List[Tuple[torch.Tensor, Any]] = []
        self._seen = _one_number(stream is not None)
        self._looks = False
        self._finite: Optional[bool] = None
        # What is behind the last sums, and behind the last copies out and in.
        self._added: Optional[Any] = None
        self._last = _LastCopies()
        # What was decoded, until it was copied.
        self._read: List[Tuple[Any, object]] = []
        self._memory = HostMemory(self._all)
        self._handing = HandingOver(look)
        # Its thread ends, and memory is unlocked, also where this is not closed.
        weakref.finalize(self, self._handing.close)
        weakref.finalize(self, _unlock, locks, self._last).atexit = False

    @property
    def early(self) -> bool:
        return self._device.type != "cpu"

    def to_host(self) -> None:
        """Adds up in the host's memory from now on."""
        self.gave_up = True
        self._tree.to_host()

    def begin(self, unit: Unit) -> None:
        self.settle()
        if self._last.out is not None:
            # Backward passes of CUDA graphs write their gradients to the same memory each time.
            self._current().wait_event(self._last.out)
        if unit.begins:
            self._tree.clear()
        self._unit, self._room = unit, None
        self._fetched = [None] * len(self._parameters)
        self._begun = len(self._parameters)
        self._largest, self._looks, self._finite = [], False, None
        unit.go_on(summed=True)
        if unit.ends:
            self._room = unit.room()
            if self._room is not None:
                self._locks.lock(self._room.memory)

    def _current_unit(self) -> Unit:
        if self._unit is None:
            raise ConnectionError("this worker has left the run within a micro-batch")
        return self._unit

    def out(self, first: int, end: int) -> None:
        unit = self._current_unit()
        if unit.ends:
            self._send(unit, first, end)

    def collect(self) -> List[bool]:
        unit = self._current_unit()
        if not unit.ends:
            return self._add(unit)
        # What was written again since it went out goes out again: the native worker, which may have
        # taken it, finds the difference.
        changed = [
            place
            for place in range(self._begun, len(self._parameters))
            if not is_same(self._fetched[place], self._parameters[place].grad)
        ]
        if self._begun:
            self._send(unit, 0, self._begun)
        if changed:
            self._handing.join()
        for place in changed:
            self._send(unit, place, place + 1)
        if changed:
            # It may be one of those that were written again: the native worker looks itself.
            self._largest = []
        self._look()
        return [each is not None for each in self._fetched]

    def settle(self) -> Optional[bool]:
        began = time.perf_counter()
        self._handing.join()
        self.moved.out_seconds += time.perf_counter() - began
        if self._looks:
            self._finite = bool(torch.isfinite(self._seen).all())
            self._looks = False
        self._fetched = []
        return self._finite

    def back(self, there: Sequence[bool], decoded: Decoded) -> List[Optional[torch.Tensor]]:
        self.settle()
        self._tree.clear()
        began = time.perf_counter()
        kept, numbers, sources = decoded.lies(self._all)
        self._locks.lock(numbers)
        found = self._back_from(sources, there, decoded.factor)
        if self._stream is not None:
            self._read = [each for each in self._read if not each[0].query()]
            self._read.append((self._last.back, (kept, numbers)))
        self.moved.back_seconds += time.perf_counter() - began
        return found

    def _back_from(
        self, sources: Sequence[torch.Tensor], there: Sequence[bool], factor: float
    ) -> List[Optional[torch.Tensor]]:
        """The gradients of all parameters that have one, each of which begins its source."""
        found: List[Optional[torch.Tensor]] = []
        late, on_host = self._stream is not None, self._device.type == "cpu"
        wide = []
        for place, (part, source, has) in enumerate(zip(self._all, sources, there)):
            if not has:
                found.append(None)
                continue
            numbers = source[: part.numel()].view(part.shape)
            self.moved.back += numbers.nbytes
            # On the current stream, which is the optimizer's.
            if part.dtype is torch.float32 and on_host:
                gradient = torch.mul(numbers, factor, out=self._memory.of(place))
            elif part.dtype is torch.float32:
                # PyTorch has memory of the device ready; kept, it would be one gradient more.
                gradient = torch.empty_like(numbers, device=self._device)
                gradient.copy_(numbers, non_blocking=late)
                wide.append(gradient)
            else:
                gradient = numbers.to(self._device, non_blocking=late, copy=True)
                gradient = gradient.mul_(factor).to(part.dtype)
            found.append(gradient)
        if wide and factor != 1.0:
            torch._foreach_mul_(wide, factor)
        if late:
            self._last.back = self._event(self._current())
        return found

    def returned(self) -> None:
        if self._last.back is not None:
            wait_for(self._last.back)

    def close(self) -> None:
        self._handing.close()
        if not _unlock(self._locks, self._last):
            # The device hangs: what it may still write or read stays.
            _UNDER_WAY.append((self._locks, self._room, self._read))
        # Memory that processes share is kept by what looks at it.
        self._unit, self._room, self._read = None, None, []

    def _add(self, unit: Unit) -> List[bool]:
        gradients = [self._gradient(place) for place in range(len(self._parameters))]
        try:
            self._tree.add(unit.number, gradients, unit.factor)
        except RuntimeError as error:
            self._give_up(error)
            self._tree.add(unit.number, gradients, unit.factor)
        if self._stream is not None:
            current = self._current()
            self._added = self._event(current)
            for each in gradients:
                if each is not None:
                    # It is freed before the sum is made, perhaps on another stream.
                    each.record_stream(current)
        return [each is not None for each in gradients]

    def _gradient(self, place: int) -> Optional[torch.Tensor]:
        fetched = self._fetched[place] = fetch_of(self._parameters[place])
        return None if fetched is None else fetched[2]

    def _send(self, unit: Unit, first: int, end: int) -> None:
        """Puts the sums of some parameters on their way into the message."""
        gradients = [self._gradient(place) for place in range(first, end)]
        self._begun = min(self._begun, first)
        if self._room is None:
            # The task is not wanted any more.
            return
        if self._stream is not None and self._added is not None:
            # Another stream may have added up the units before.
            self._current().wait_event(self._added)
        sums = self._sums(unit, first, end, gradients)
        self._measure(sums)
        starts = self._tree.starts
        pairs = list(_cut_alike(self._room.between(starts[first], starts[end]), sums))
        if self._stream is None:
            for room, numbers in pairs:
                room.copy_(numbers)
            unit.written(first, end)
            return
        self.moved.out += sum(each.nbytes for each in sums)
        self._stream.wait_event(self._event(self._current()))
        with self._stream:
            for room, numbers in pairs:
                room.copy_(numbers, non_blocking=True)
        self._last.out = self._event(self._stream)
        # Gradients and sums are kept until the copies are over: only then is their memory free.
        kept = (sums, self._fetched[first:end])
        self._handing.put(lambda: unit.written(first, end), self._last.out, kept)

    def _sums(
        self, unit: Unit, first: int, end: int, gradients: Sequence[Optional[torch.Tensor]]
    ) -> List[torch.Tensor]:
        """Those of some parameters in their order, in one piece or in several."""
        bare = self._tree.is_empty and unit.factor == 1.0
        if bare and all(x is not None and x.dtype is torch.float32 for x in gradients):
            # As they are: a vector of them would be one gradient more.
            return [x.reshape(-1) for x in gradients if x is not None]
        try:
            return [self._tree.total(first, end, gradients, unit.factor)]
        except RuntimeError as error:
            self._give_up(error)
            return [self._tree.total(first, end, gradients, unit.factor)]

    def _measure(self, sums: Sequence[torch.Tensor]) -> None:
        """Takes in the largest magnitude of some numbers; one that is no number stays.

        In the host's memory the native worker looks itself: PyTorch takes ten times as long.
        """
        several = [each for each in sums if each.numel()]
        if not several or self._device.type == "cpu":
            return
        largest = torch.stack(list(torch._foreach_norm(several, _INFINITY))).amax()
        # Parts of a backward pass may be on different streams.
        behind = None if self._stream is None else self._event(self._current())
        self._largest.append((largest, behind))

    def _look(self) -> None:
        """Has the largest magnitude of the sum come to the host, behind all copies."""
        several, self._largest = self._largest, []
        if not several:
            return
        self._looks = True
        if self._stream is not None:
            for _, behind in several:
                self._current().wait_event(behind)
        largest = torch.stack([each.to(self._device) for each, _ in several]).amax()
        if self._stream is None:
            self._seen.copy_(largest)
            return
        self._stream.wait_event(self._event(self._current()))
        with self._stream:
            self._seen.copy_(largest.view(1), non_blocking=True)
        self._last.out = self._event(self._stream)
        self._handing.put(lambda: None, self._last.out, (largest, several))

    def _give_up(self, error: RuntimeError) -> None:
        """Adds up in the host's memory from now on, with a warning, if there is too little of the
        device's; raises the error if it is another one."""
        if self.gave_up or self._device.type == "cpu":
            raise error
        if not (isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)):
            raise error
        self.to_host()
        size = 4 * self._tree.starts[-1]
        warn(
            f"{self._device.type} has no {size} bytes left for a partial sum of this task's "
            "micro-batches: this worker adds gradients up in the host's memory from now on, with the "
            f"same bits and slower. Free memory of the device, or set {VARIABLE}=host"
        )

    def _current(self) -> Any:
        return torch.accelerator.current_stream(self._device)

    def _event(self, stream: Any) -> Any:
        return event_of(self._device, stream)


def _cut_alike(
    these: Iterable[torch.Tensor], those: Iterable[torch.Tensor]
) -> Iterator[Tuple[torch.Tensor, torch.Tensor]]:
    """The numbers of two lists of vectors, of as many in all, in pairs of vectors of one length."""
    others = (each for each in those if len(each))
    other: Optional[torch.Tensor] = None
    for this in these:
        while len(this):
            other = next(others) if other is None else other
            size = min(len(this), len(other))
            yield this[:size], other[:size]
            this = this[size:]
            other = other[size:] if size < len(other) else None


class _LastCopies:
    """What is behind the last copies out and in."""

    def __init__(self) -> None:
        self.out: Optional[Any] = None
        self.back: Optional[Any] = None

    def are_over(self) -> bool:
        """Whether they are over, or are soon; not if the device has failed, or hangs."""
        until = time.monotonic() + _LAST_SECONDS
        pending = [event for event in (self.out, self.back) if event is not None]
        try:
            return all(wait_for(each, lambda: time.monotonic() > until) for each in pending)
        except RuntimeError:
            return False


def _unlock(locks: PageLocks, last: _LastCopies) -> bool:
    """Unlocks what was page-locked, if no copy is on its way; gives back which."""
    over = last.are_over()
    if over:
        locks.close()
    return over


def _one_number(page_locked: bool) -> torch.Tensor:
    """One that a device can write while the host goes on, if there is such memory."""
    with contextlib.suppress(RuntimeError):
        return torch.zeros(1, dtype=torch.float32, device="cpu", pin_memory=page_locked)
    return torch.zeros(1, dtype=torch.float32, device="cpu")


# What a device that hangs may still write or read when its run is left.
_UNDER_WAY: List[object] = []
