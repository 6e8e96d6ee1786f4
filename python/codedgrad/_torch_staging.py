"""The way of gradients between an accelerator and the host's memory, by PyTorch's own streams.

Gradients go out on a stream of their own, which waits on the device for the one that computes them,
into page-locked memory; nobody reads that before the event behind the copy. What is decoded comes
back on the stream that the optimizer uses, and its memory is not written again before that copy is
over. So no thread waits for the device but where the host needs the numbers: the trainer's once for
a unit, when its backward pass is over.
"""

from __future__ import annotations

import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ._torch_host import HandOver, OnHost, Transfer, numbers, plain
from ._warn import warn

# An event is asked for between pauses, the first and the longest, so that a signal ends the wait
# also where the device hangs.
_PAUSE_SECONDS = 50e-6
_LONGEST_PAUSE_SECONDS = 1e-3


def wait_for(event: Any, given_up: Callable[[], bool] = lambda: False) -> bool:
    """Waits for what the device does before an event; false if it was given up."""
    pause = _PAUSE_SECONDS
    while not event.query():
        if given_up():
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return True


def transfer_of(parameters: Sequence[torch.nn.Parameter]) -> Transfer:
    """That of parameters which are all on one device."""
    on_host = parameters[0].device.type == "cpu"
    return OnHost(parameters) if on_host else Staging(parameters)


class Staging(Transfer):
    """That of parameters of an accelerator, through memory of the host that serves both ways: they
    take turns."""

    def __init__(self, parameters: Sequence[torch.Tensor]):
        self._parameters = list(parameters)
        self._device = self._parameters[0].device
        # Where there are no streams, none: copies are waited for as they are made.
        self._stream = _stream_of(self._device)
        self._host = _host_memory(self._parameters, page_locked=self._stream is not None)
        self._arrays = [numbers(each) for each in self._host]
        # The gradients that are on their way, with what their versions were then. They are kept
        # until the copies are over: their memory is nobody else's before.
        self._fetched: List[Optional[_Fetched]] = [None] * len(self._parameters)
        # Parameters from here on are on their way, or there.
        self._begun = len(self._parameters)
        # What is behind the last copies, out and in.
        self._there: Optional[Any] = None
        self._sent: Optional[Any] = None
        self._handing = _HandingOver()
        # Its thread ends also where nobody closes this.
        weakref.finalize(self, self._handing.close)

    @property
    def early(self) -> bool:
        return self._stream is not None

    def begin(self) -> None:
        if self._there is not None:
            # Backward passes of CUDA graphs write their gradients to the same memory each time.
            self._current().wait_event(self._there)
        self._let_go()

    def out(self, first: int, end: int, hand_over: HandOver) -> None:
        # In another thread, when they are there. What that raises `collect` raises.
        there = self._fetch(range(first, end))
        self._begun = first
        self._handing.put(there, lambda: hand_over(first, self._found(first, end)))

    def collect(self, hand_over: HandOver) -> List[bool]:
        # What was written again since it was handed over is handed over again: whoever has taken
        # it finds the difference.
        changed = [
            place
            for place in range(self._begun, len(self._parameters))
            if not _is_same(self._fetched[place], self._parameters[place].grad)
        ]
        rest = self._begun
        self._handing.join()
        places = [*range(rest), *changed]
        there = self._fetch(places) if places else None
        if there is not None:
            wait_for(there)
        if rest:
            hand_over(0, self._found(0, rest))
        for place in changed:
            hand_over(place, self._found(place, place + 1))
        found = [each is not None for each in self._fetched]
        self._let_go()
        return found

    def into(self, there: Sequence[bool]) -> List[Optional[Any]]:
        self._let_go()
        if self._sent is not None:
            # Whoever has computed since has waited for this already; who is late has not.
            wait_for(self._sent)
        return [array if has else None for array, has in zip(self._arrays, there)]

    def back(self, there: Sequence[bool]) -> List[Optional[torch.Tensor]]:
        # For the current stream, which is the optimizer's.
        found: List[Optional[torch.Tensor]] = []
        for parameter, host, has in zip(self._parameters, self._host, there):
            gradient = None
            if has:
                # PyTorch has this memory at hand; kept, it would be one gradient more.
                gradient = torch.empty(host.shape, dtype=host.dtype, device=self._device)
                gradient.copy_(host, non_blocking=self.early)
            found.append(gradient)
        if self.early:
            self._sent = self._event(self._current())
        return found

    def close(self) -> None:
        self._handing.close()

    def _let_go(self) -> None:
        """The unit's gradients are no longer needed."""
        if self._begun < len(self._parameters):
            # A unit that was given up: its gradients may still be read.
            self._handing.join()
            if self._there is not None:
                wait_for(self._there)
        self._begun = len(self._parameters)
        self._fetched = [None] * len(self._parameters)

    def _fetch(self, places: Sequence[int]) -> Optional[Any]:
        """Puts gradients on their way; gives back the event behind them."""
        found = []
        for place in places:
            fetched = self._fetched[place] = _fetch_of(self._parameters[place])
            if fetched is not None:
                found.append((self._host[place], fetched[2]))
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

    def _found(self, first: int, end: int) -> List[Any]:
        pairs = zip(self._fetched[first:end], self._arrays[first:end])
        return [None if fetched is None else array for fetched, array in pairs]

    def _current(self) -> Any:
        return torch.accelerator.current_stream(self._device)

    def _event(self, stream: Any) -> Any:
        event = torch.Event(device=self._device)
        event.record(stream)
        return event


# A gradient, its version, and the same as it is copied.
_Fetched = Tuple[torch.Tensor, int, torch.Tensor]


def _fetch_of(parameter: torch.Tensor) -> Optional[_Fetched]:
    gradient = parameter.grad
    if gradient is None:
        return None
    return gradient, gradient._version, plain(gradient, parameter.dtype)


def _is_same(fetched: Optional[_Fetched], gradient: Optional[torch.Tensor]) -> bool:
    if fetched is None or gradient is None:
        return fetched is None and gradient is None
    return fetched[0] is gradient and fetched[1] == gradient._version


class _HandingOver:
    """A thread that hands over what was put, in this order, when it is in the host's memory."""

    def __init__(self) -> None:
        self._orders: "SimpleQueue[Any]" = SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._trouble: Optional[BaseException] = None
        self._closed = False

    def put(self, there: Any, order: Callable[[], None]) -> None:
        """`order` is called when the event `there` has come."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True)
            self._thread.start()
        self._orders.put((there, order))

    def join(self) -> None:
        """Waits until all is handed over; raises what that has raised."""
        if self._thread is None:
            return
        done = threading.Event()
        self._orders.put((None, done.set))
        done.wait()
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
            there, order = entry
            try:
                if there is None:
                    order()
                elif self._trouble is None and wait_for(there, lambda: self._closed):
                    order()
            except BaseException as error:
                self._trouble = error


def _stream_of(device: torch.device) -> Optional[torch.Stream]:
    """A stream for copies; none, which is said, if the kind of device has no streams or events."""
    try:
        stream = torch.Stream(device=device)
        event = torch.Event(device=device)
        event.record(torch.accelerator.current_stream(device))
        stream.wait_event(event)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        warn(
            f"{device.type} has no streams or no events for PyTorch ({_first_line(error)}): the "
            "trainer waits while gradients are copied to the host, and back"
        )
        return None
    return stream


def _host_memory(parameters: Sequence[torch.Tensor], page_locked: bool) -> List[torch.Tensor]:
    """Memory for their gradients: page-locked, or as it is with a warning."""

    def make(pin: bool) -> List[torch.Tensor]:
        return [torch.empty(each.shape, dtype=each.dtype, pin_memory=pin) for each in parameters]

    try:
        return make(page_locked)
    except RuntimeError as error:
        size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        warn(
            f"{size} bytes of the host's memory cannot be page-locked ({_first_line(error)}): "
            "gradients are copied through memory that is not, which is slower and holds the "
            "backward pass up"
        )
    return make(False)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
