"""How a worker leaves its run, and what its coordinator hears of it.

A worker that leaves *for good* is not waited for: by `close`, by `break` out of the loop, by a
process that ends with status 0. SIGTERM is said to the coordinator first: the worker goes on with
its task and the step's end until it is let go, for as long as its notice is; if it goes before, it
says that it was *told*. A worker that leaves by an exception counts as lost: the coordinator hears
of the unit, its samples, the exception and its place, and the worker's task waits for its return or
for another holder. Where the exception says that the script misuses this package, the run ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
from enum import Enum
from typing import Callable, Optional

from .. import _native
from . import signals
from .exits import Left, is_misuse, place_of, say_final, shown
from .signals import Order
from .units import Micro


class How(Enum):
    """How a worker leaves its run, as the native worker is told it; the worst first."""

    MISUSE = "misuse"
    FAILED = "failed"
    TOLD = "told"
    FOR_GOOD = "for good"


def say_short(text: str) -> None:
    """One line on standard error, also where something is being printed to it."""
    with contextlib.suppress(OSError):
        os.write(2, f"codedgrad: {text}\n".encode())


class Parting:
    """Whether a worker is in its run, and its last word where it leaves."""

    def __init__(
        self,
        native: _native.Worker,
        release: Callable[[], None],
        notice: float,
        told_to_end: Optional[Callable[[Order], None]] = None,
    ):
        # Whether the run has ended for all; whether this worker has left it.
        self.ended = False
        self.left = False
        #: The unit that is being computed, at which an exception arises.
        self.unit: Optional[Micro] = None
        self._native = native
        self._worker = native.worker
        self._release = release
        # How many seconds it may take to leave when it is told to, and what ends them.
        self._notice = notice
        self._overdue: Optional[threading.Timer] = None
        # What SIGTERM calls of a process that leaves later, with others.
        self._told_to_end = told_to_end
        #: Whether this process was told to end, and will leave.
        self.told = False
        # What is said of it when this process was told to end.
        self._farewell: Optional[str] = None

    @property
    def over(self) -> bool:
        """Whether the run has ended, for all workers or for this one."""
        return self.ended or self.left

    @property
    def leaving(self) -> bool:
        """Whether this worker was told to end, and goes on until it is let go."""
        return self._native.leaving

    def part(
        self, reason: str, how: How, unit: Optional[Micro] = None, place: Optional[str] = None
    ) -> None:
        """Leaves the run, if it goes on, with a last word to its coordinator."""
        if not self.over:
            self.left = True
            failed = None
            if unit is not None:
                samples = unit.samples
                failed = (unit.batch, unit.unit, samples.start, samples.stop)
            self._native.leave(reason, how.value, failed, place)
        self._release()
        signals.unwatch(self)

    def fail(self, error: BaseException) -> None:
        """Leaves the run for an exception, which ends what the user does with it."""
        if isinstance(error, SystemExit) and not error.code:
            self.part("its process ends with status 0", How.FOR_GOOD)
            return
        # A generator around the loop is closed by whatever ends the one around it.
        hidden = isinstance(error, GeneratorExit)
        reason = "its loop was left within a generator" if hidden else shown(error)
        # Nothing is wrong with a unit at which a user presses Ctrl-C.
        if isinstance(error, KeyboardInterrupt):
            self.part(reason, How.FAILED)
            return
        how = How.MISUSE if is_misuse(error) else How.FAILED
        if how is How.MISUSE and not self.over:
            say_final("ends", reason)
        self.part(reason, how, self.unit, reason if hidden else place_of(error))

    def loop_left(self, error: Optional[BaseException]) -> None:
        """A loop over the run has ended before the run: by an exception, or by `break`."""
        if error is None:
            self.part("its loop over the run was left", How.FOR_GOOD)
        else:
            self.fail(error)

    def units_left(self, error: Optional[BaseException]) -> None:
        """A loop over micro-batches has ended before they were done."""
        if error is not None:
            self.fail(error)
        # After `break` the end of the body says what is wrong with that.
        self.unit = None

    def leave(self) -> Optional[Left]:
        """Leaves the run for SIGTERM; gives back what the process ends by, none if it leaves later.

        The handler of the signal calls it wherever the main thread is: also where the run is not
        whole yet, or where something is being printed.
        """
        if self._notice > 0 and self._overdue is None:
            self._begin_to_leave()
            return None
        if self._told_to_end is not None:
            self.told = True
            self._told_to_end(Order.END)
            return None
        self._farewell = f"worker {self._worker} leaves the run: it was told to end (SIGTERM)"
        self.left = True
        self._native.leave("it was told to end (SIGTERM)", How.TOLD.value)
        say_short(self._farewell)
        return Left(self._farewell)

    def _begin_to_leave(self) -> None:
        self._overdue = threading.Timer(self._notice, signals.notice_is_over)
        self._overdue.daemon = True
        self._overdue.start()
        if self._told_to_end is not None:
            self._told_to_end(Order.LEAVE)
            return
        self._native.give_notice(self._notice)
        say_short(
            f"worker {self._worker} was told to end (SIGTERM): it finishes its task and leaves the "
            f"run, within {self._notice:g} s"
        )

    def let_go(self) -> Left:
        """It was told to end, and no worker needs it any more: what the process ends by."""
        self._farewell = f"worker {self._worker} has left the run: it was told to end (SIGTERM)"
        return Left(self._farewell)

    def check(self) -> None:
        """Raises `Left` again where the script has caught it, and ends other threads."""
        if self._farewell is None:
            return
        if threading.current_thread() is threading.main_thread():
            raise Left(self._farewell)
        # By this one alone, by none of its subclasses, a thread ends without a traceback.
        raise SystemExit(0)
