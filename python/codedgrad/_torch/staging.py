"""The way of gradients between an accelerator and the host's memory, by PyTorch's own streams.

Gradients go out on a stream of their own, which waits on the device for the one that computes them,
into page-locked memory; no one reads that before the event behind the copy. What is decoded comes
back on the stream that the optimizer uses, and its memory is not written again before that copy is
over. A thread of its own waits for the device and hands over what has come, in order; the trainer's
goes on to the next unit meanwhile, and waits once for a task, when its last backward pass is over.
Two units' gradients may be on their way: a trainer that is further ahead waits for the first.

This way hands every unit over, for the host to add up. `sums` adds them up on the device; what both
need of streams, events and threads is here.
"""

from __future__ import annotations

import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from .._core.warn import warn
from .host import Decoded, Transfer, Unit, numbers, plain
from .parts import Part

# An event is asked for between pauses, the first and the longest, so that a signal ends the wait
# also where the device hangs.
_PAUSE_SECONDS = 50e-6
_LONGEST_PAUSE_SECONDS = 1e-3
# How often a rank that waits for longer looks whether another one has died.
_LOOK_SECONDS = 0.2

# What is decoded comes back in pieces of at least so many numbers: their copies cost more each than
# smaller ones would save.
_PIECE = 25 << 18


def wait_for(event: Any, given_up: Callable[[], bool] = lambda: False) -> bool:
    """Waits for what the device does before an event; false if it was given up."""
    pause = _PAUSE_SECONDS
    while not event.query():
        if given_up():
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return True


class _Buffers:
    """Memory of the host for the gradients of some parameters."""

    def __init__(self, parameters: Sequence[Part], page_locked: bool):
        self.tensors, self.page_locked = _host_memory(parameters, page_locked)
        self.arrays = [numbers(each) for each in self.tensors]
        # Whether all is handed over that was copied to it.
        self.read = threading.Event()
        self.read.set()


class Staging(Transfer):
    """That of parameters of an accelerator, through memory of the host that serves both ways: they
    take turns."""

    def __init__(self, parameters: Sequence[Part], stream: Optional[torch.Stream]):
        """stream: for copies; where there is none they are waited for as they are made."""
        super().__init__()
        self._parameters = list(parameters)
        self._device = self._parameters[0].device
        self._stream = stream
        # The first also for what is decoded; the second where a unit begins while the one before is
        # handed over, which a task of one unit never needs.
        self._first = _Buffers(self._parameters, self.early)
        self._second: Optional[_Buffers] = None
        # The current unit and its memory, and whether it is still computed.
        self._unit: Optional[Unit] = None
        self._buffers = self._first
        self._computes = False
        # Its gradients that are on their way, with what their versions were then. The thread
        # which hands them over keeps them until the copies are over: only then is their memory free.
        self._fetched: List[Optional[Fetched]] = [None] * len(self._parameters)
        # Parameters from here on are on their way, or there.
        self._begun = len(self._parameters)
        # What is behind the last copies, out and in.
        self._there: Optional[Any] = None
        self._sent: Optional[Any] = None
        self._handing = HandingOver()
        # Its thread ends also where this is not closed.
        weakref.finalize(self, self._handing.close)

    @property
    def early(self) -> bool:
        return self._stream is not None

    def begin(self, unit: Unit) -> None:
        if self._computes:
            # A unit that was given up: its gradients may still be read.
            self.settle()
            self._buffers.read.set()
        self._handing.check()
        if self._there is not None:
            # Backward passes of CUDA graphs write their gradients to the same memory each time.
            self._current().wait_event(self._there)
        self._fetched = [None] * len(self._parameters)
        self._begun = len(self._parameters)
        self._unit, self._computes = unit, True
        if self.early:
            self._buffers = self._free()
            self._buffers.read.clear()
            self._handing.put(unit.go_on)
        else:
            unit.go_on()

    def out(self, first: int, end: int) -> None:
        """Puts gradients on their way, to be handed over by another thread when they are there."""
        unit = self._unit
        assert unit is not None, "a unit has begun"
        there = self._fetch(range(first, end))
        self._begun = min(self._begun, first)
        fetched, arrays = self._fetched[first:end], self._buffers.arrays[first:end]
        found = [array if has is not None else None for array, has in zip(arrays, fetched)]
        self.moved.out += sum(0 if each is None else each.nbytes for each in found)
        if there is None:
            unit.hand_over(first, found)
        else:
            self._handing.put(lambda: unit.hand_over(first, found), there, fetched)

    def collect(self) -> List[bool]:
        # What was written again since it was handed over is handed over again: whoever has taken
        # it finds the difference.
        changed = [
            place
            for place in range(self._begun, len(self._parameters))
            if not is_same(self._fetched[place], self._parameters[place].grad)
        ]
        if self._begun:
            self.out(0, self._begun)
        if changed:
            self.settle()
        for place in changed:
            self.out(place, place + 1)
        self._computes = False
        if self.early:
            self._handing.put(self._buffers.read.set, always=True)
        return [each is not None for each in self._fetched]

    def settle(self) -> Optional[bool]:
        began = time.perf_counter()
        self._handing.join()
        self.moved.out_seconds += time.perf_counter() - began
        if not self._computes:
            self._fetched = [None] * len(self._parameters)
        return None

    def back(self, there: Sequence[bool], decoded: Decoded) -> List[Optional[torch.Tensor]]:
        self.settle()
        began = time.perf_counter()
        if self._sent is not None:
            # A worker that has computed since has waited for this already; one that is late has not.
            wait_for(self._sent)
        # On the current stream, which is the optimizer's. What is written first is copied while
        # the next is written.
        found: List[Optional[torch.Tensor]] = []
        for first, end in _pieces(self._parameters):
            several = zip(self._first.arrays[first:end], there[first:end])
            arrays = [array if has else None for array, has in several]
            decoded.write(first, arrays)
            self.moved.back += sum(0 if each is None else each.nbytes for each in arrays)
            for host, has in zip(self._first.tensors[first:end], there[first:end]):
                gradient = None
                if has:
                    # PyTorch has this memory ready; kept, it would be one gradient more.
                    gradient = torch.empty(host.shape, dtype=host.dtype, device=self._device)
                    gradient.copy_(host, non_blocking=self.early)
                found.append(gradient)
        if self.early:
            self._sent = self._event(self._current())
        self.moved.back_seconds += time.perf_counter() - began
        return found

    def close(self) -> None:
        self._handing.close()

    def _free(self) -> _Buffers:
        """Memory of the host that is not read any more."""
        if self._first.read.is_set():
            return self._first
        if self._second is None:
            self._second = _Buffers(self._parameters, self._first.page_locked)
        older = self._second if self._buffers is self._first else self._first
        older.read.wait()
        return older

    def _fetch(self, places: Sequence[int]) -> Optional[Any]:
        """Puts gradients on their way; gives back the event behind them."""
        found = []
        for place in places:
            fetched = self._fetched[place] = fetch_of(self._parameters[place])
            if fetched is not None:
                found.append((self._buffers.tensors[place], fetched[2]))
        if self._stream is None:
            for host, gradient in found:
                host.copy_(gradient)
            return None
        # That of the thread that computes backward passes is the one that they are computed on.
        self._stream.wait_event(self._event(self._current()))
        if self._sent is not None:
            self._stream.wait_event(self._sent)
        with self._stream:
            for host, gradient in found:
                host.copy_(gradient, non_blocking=True)
        self._there = self._event(self._stream)
        return self._there

    def _current(self) -> Any:
        return torch.accelerator.current_stream(self._device)

    def _event(self, stream: Any) -> Any:
        return event_of(self._device, stream)


def event_of(device: torch.device, stream: Any) -> Any:
    """An event behind what a stream was given so far."""
    event = torch.Event(device=device)
    event.record(stream)
    return event


def _pieces(parameters: Sequence[Part]) -> Iterator[Tuple[int, int]]:
    """Places of the parameters that are written before their copy begins."""
    first = size = 0
    for place, parameter in enumerate(parameters):
        size += parameter.numel()
        if size >= _PIECE or place + 1 == len(parameters):
            yield first, place + 1
            first, size = place + 1, 0


# A gradient, its version, and the same as it is copied.
Fetched = Tuple[torch.Tensor, int, torch.Tensor]


def fetch_of(parameter: Part) -> Optional[Fetched]:
    """What a parameter's gradient is now, if it has one."""
    gradient = parameter.grad
    if gradient is None:
        return None
    return gradient, gradient._version, plain(gradient, parameter.dtype)


def is_same(fetched: Optional[Fetched], gradient: Optional[torch.Tensor]) -> bool:
    """Whether a parameter's gradient was not written since."""
    if fetched is None or gradient is None:
        return fetched is None and gradient is None
    return fetched[0] is gradient and fetched[1] == gradient._version


class HandingOver:
    """A thread that does what was put, in this order, each when its event has come.

    Behind something that raises it does nothing more, but for what is `always` to be done, until
    that was raised by the trainer's thread.
    """

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        """look: is called again and again while something is waited for; it may raise."""
        self._look = look
        self._orders: "SimpleQueue[Any]" = SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        # Whether something was put since it was waited for last.
        self._busy = False
        self._trouble: Optional[BaseException] = None
        self._closed = False

    def put(
        self,
        order: Callable[[], None],
        there: Any = None,
        kept: object = None,
        always: bool = False,
    ) -> None:
        """`order` is called when the event `there` has come, and `kept` kept until then."""
        if self._closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._busy = True
        self._orders.put((order, there, kept, always))

    def join(self) -> None:
        """Waits until all is done; raises what that has raised."""
        if self._busy and not self._closed:
            done = threading.Event()
            self.put(done.set, always=True)
            while not done.wait(_LOOK_SECONDS):
                self._look()
            self._busy = False
        self.check()

    def check(self) -> None:
        """Raises what was raised so far."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def close(self) -> None:
        self._closed = True
        self._orders.put(None)

    def _serve(self) -> None:
        while True:
            entry = self._orders.get()
            if entry is None:
                return
            order, there, _, always = entry
            try:
                if always:
                    order()
                elif self._trouble is None:
                    if there is None or wait_for(there, lambda: self._closed):
                        order()
            except BaseException as error:
                self._trouble = error
            # Gradients are not kept while nothing is to be done.
            del entry, order, there, _


def stream_of(device: torch.device) -> Optional[torch.Stream]:
    """A stream for copies; none, which is said, if the kind of device has no streams or events."""
    try:
        stream = torch.Stream(device=device)
        event = torch.Event(device=device)
        event.record(torch.accelerator.current_stream(device))
        stream.wait_event(event)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        warn(
            f"{device.type} has no streams or no events for PyTorch ({first_line(error)}): the "
            "trainer waits while gradients are copied to the host, and back"
        )
        return None
    return stream


def _host_memory(parameters: Sequence[Part], page_locked: bool) -> Tuple[List[torch.Tensor], bool]:
    """Memory for their gradients, and whether it is page-locked: if not, with a warning."""

    def make(pin: bool) -> List[torch.Tensor]:
        return [torch.empty(each.shape, dtype=each.dtype, pin_memory=pin) for each in parameters]

    try:
        return make(page_locked), page_locked
    except RuntimeError as error:
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        warn(
            f"{size} bytes of the host's memory cannot be page-locked ({first_line(error)}): "
            "gradients are copied through memory that is not, which is slower and holds the "
            "backward pass up"
        )
    return make(False), False


def first_line(error: BaseException) -> str:
    """What an error says first."""
    return (str(error) or type(error).__name__).splitlines()[0]
