"""What a rank does from one moment of a step to the next, and the clocks that tell the moments."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple

import torch

# What a rank is at after a moment, in the order of the columns that hold its seconds.
LOADING, FORWARD, BETWEEN, LOSS, BACKWARD, OPTIMIZER, WAITING = range(7)
_SPANS = ("loading", "forward", "between", "loss", "backward", "optimizer", "waiting")
_STAMPS = ("began", "forward", "first", "last", "ended")
HEADER = ",".join(["step", *_STAMPS, *(f"{span}_s" for span in _SPANS)])

# A moment, what follows it, the next moment, and so on: of pairs the garbage collector would have
# to look at each.
Turns = List[Any]
# Steps whose events the device may not have come to yet; beyond that it hangs, or never will.
_BEHIND = 1000


def _row(step: int, turns: Turns, end: float) -> str:
    """Moments that did not come, such as the first step's `began`, are empty."""
    seconds = [0.0] * len(_SPANS)
    began = forward = first = last = ended = None
    since, span = turns[0], -1
    for at, then in zip(turns[::2], turns[1::2]):
        if span >= 0:
            seconds[span] += at - since
        if then == WAITING:
            if span != WAITING:
                last = at
        elif then == BACKWARD:
            first = at if first is None else first
        elif then == OPTIMIZER:
            ended = at
        elif then == LOADING and span < 0:
            began = at
        if forward is None and first is None and then in (FORWARD, BETWEEN, WAITING):
            forward = at
        since, span = at, then
    seconds[span] += end - since
    if first is None:
        last = None
    cells = ["" if at is None else f"{at:.6f}" for at in (began, forward, first, last, ended)]
    cells.extend(f"{each:.6f}" for each in seconds)
    return f"{step},{','.join(cells)}\n"


class Clock(ABC):
    """Tells moments, and makes rows of the steps whose moments are known."""

    # Now.
    moment: Callable[[], Any]

    def __init__(self) -> None:
        self._rows: List[str] = []

    @abstractmethod
    def close_step(self, step: int, turns: Turns, end: Any) -> None:
        """A step is over."""

    def settle(self, wait: bool) -> None:
        """Looks which steps are known by now, or waits until all are."""

    def rows(self) -> List[str]:
        """The rows that were not given yet."""
        rows, self._rows = self._rows, []
        return rows


class HostClock(Clock):
    """The host's clock, of a model that computes as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.moment = time.perf_counter

    def close_step(self, step: int, turns: Turns, end: Any) -> None:
        self._rows.append(_row(step, turns, end))


class DeviceClock(Clock):
    """Events on the stream that computes, which are read once they have passed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._module = getattr(torch, device.type)
        self.moment = self._event
        self._open: Deque[Tuple[int, Turns, Any]] = deque()
        # The last event whose time is known, and that time: differences of events that are far
        # apart would lose digits.
        self._known: Optional[Tuple[Any, float]] = None

    def _event(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def close_step(self, step: int, turns: Turns, end: Any) -> None:
        self._open.append((step, turns, end))
        if len(self._open) > _BEHIND:
            raise RuntimeError(f"the device has not come to what it was told {_BEHIND} steps ago")
        # The step before: its events have passed, unless the host is far ahead.
        if len(self._open) > 1:
            self._read_first()

    def settle(self, wait: bool) -> None:
        if wait:
            self._module.synchronize()
        while self._open and self._read_first():
            pass

    def _read_first(self) -> bool:
        step, turns, end = self._open[0]
        # The last one passes last, unless they lie on several streams.
        if not (end.query() and all(event.query() for event in turns[::2])):
            return False
        self._open.popleft()
        turns[::2] = [self._time_of(event) for event in turns[::2]]
        self._rows.append(_row(step, turns, self._time_of(end)))
        return True

    def _time_of(self, event: Any) -> float:
        """Seconds since the first event."""
        if self._known is None:
            self._known = (event, 0.0)
        before, at = self._known
        moment = at + float(before.elapsed_time(event)) / 1e3
        self._known = (event, moment)
        return moment
