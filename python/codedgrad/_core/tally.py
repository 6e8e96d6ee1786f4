"""What a worker has done, and its seconds by phase, each of which may be a span in a profiler's trace.

Phases do not overlap, and all are of the thread that trains:

| phase | what | its span |
|---|---|---|
| `compute` | the micro-batches | none: it is the user's |
| `take` | gradients go into the message | `codedgrad::hand_over` |
| `wait` | for the run's next word | `codedgrad::wait` |
| `give` | the decoded gradient comes back | `codedgrad::take_back` |
| `apply` | the body of a decided step | `codedgrad::apply` |
| `state` | this replica is handed over, or another one's is taken | `codedgrad::state` |
"""

from __future__ import annotations

import time
from typing import Any, Callable, ContextManager, Dict, Optional

#: Opens a span of this name where a profiler looks on, else gives none.
Spans = Callable[[str], Optional[ContextManager[Any]]]

_now = time.perf_counter


class Phase:
    """A phase: `with` it, or begin and end it. A phase that did not begin ends without effect."""

    __slots__ = ("seconds", "_span", "_spans", "_open", "_began")

    def __init__(self, span: str, spans: Spans):
        self.seconds = 0.0
        self._span = f"codedgrad::{span}"
        self._spans = spans
        self._open: Optional[ContextManager[Any]] = None
        self._began: Optional[float] = None

    def begin(self) -> None:
        """It begins now."""
        self._open = self._spans(self._span)
        self._began = _now()

    def end(self) -> None:
        """It ends now."""
        if self._began is None:
            return
        self.seconds += _now() - self._began
        self._began = None
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


class Tally:
    """What a worker has done, and its seconds by phase."""

    def __init__(self, spans: Spans) -> None:
        self.counts = {"units": 0, "abandoned": 0, "applied": 0, "skipped": 0, "resyncs": 0}
        self.computed = 0.0
        self.take = Phase("hand_over", spans)
        self.wait = Phase("wait", spans)
        self.give = Phase("take_back", spans)
        self.apply = Phase("apply", spans)
        self.state = Phase("state", spans)
        # Of the last commit and of the one before: the time, seconds by phase, micro-batches.
        self._last = self._before = self._mark()

    def lap(self) -> float:
        """The time now."""
        return _now()

    def seconds(self) -> Dict[str, float]:
        """Of each phase, so far."""
        return {
            "compute": self.computed,
            "wait": self.wait.seconds,
            "take": self.take.seconds,
            "give": self.give.seconds,
            "apply": self.apply.seconds,
            "state": self.state.seconds,
        }

    def _mark(self) -> Dict[str, float]:
        units = self.counts["units"] + self.counts["abandoned"]
        return {"step": _now(), **self.seconds(), "units": units}

    def decided(self) -> None:
        """What became of a step is shown: its body begins."""
        self._before, self._last = self._last, self._mark()
        self.apply.begin()

    def metrics(self, batch: float) -> Dict[str, float]:
        """Of the last step that was decided; `batch` are the micro-batches that an uncoded worker
        computes of one."""
        last, before = self._last, self._before
        took = {name: last[name] - before[name] for name in last}
        counts = self.counts
        return {
            "coded/step_seconds": took["step"],
            "coded/compute_seconds": took["compute"],
            "coded/hand_over_seconds": took["take"],
            "coded/exposed_wait_seconds": took["wait"],
            "coded/take_back_seconds": took["give"],
            "coded/apply_seconds": took["apply"],
            "coded/state_seconds": took["state"],
            "coded/work": took["units"] / batch,
            "coded/abandoned_micro_batches": float(counts["abandoned"]),
            "coded/applied_steps": float(counts["applied"]),
            "coded/skipped_steps": float(counts["skipped"]),
            "coded/state_transfers": float(counts["resyncs"]),
        }
