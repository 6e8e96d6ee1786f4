"""Where a step stands. `run` tells how it gets there."""

from __future__ import annotations

from enum import Enum
from typing import Protocol


class State(Enum):
    """Where a step stands."""

    UNDECIDED = "undecided"
    """Its units are computed, here or by others; what gradients there are, are parts of it."""
    APPLIED = "applied"
    """The gradient of the whole batch is there."""
    SKIPPED = "skipped"
    """No worker had a finite gradient of some unit: it is counted, and applied by no replica."""
    TAKES_OVER = "takes over"
    """This replica is too far behind: it takes over another one's state after the body."""
    OVER = "over"
    """The run has ended before the step was decided; the body's work is taken back."""


class Progress(Protocol):
    """How far a run is, for whoever looks on."""

    state: State
    """That of the step that is open; undecided also while none is."""

    @property
    def over(self) -> bool:
        """Whether the run has ended, for all workers or for this one."""
