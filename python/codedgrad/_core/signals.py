"""SIGTERM makes a process leave its runs: its coordinators hear of it at once, and it ends when
they let it go, when its notice is over, or at a second SIGTERM.

One handler serves all runs that the process has joined. It is there while one of them goes on, and
only where SIGTERM had its default action: a handler of the user's is left alone.

Ctrl-C reaches all workers of `codedgrad run` at once: a worker that ends by it says so in one line,
where it would show as many tracebacks as there are workers.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
import weakref
from enum import Enum
from typing import Any, Dict, List, Optional, Protocol

# A file that appears at this path is as good as SIGTERM: a cloud's word that the host goes.
_NOTICE_FILE = "CODEDGRAD_NOTICE_FILE"
_LOOK_SECONDS = 1.0

# A second SIGTERM within this time belongs to the first: `timeout` sends one to the process and
# another to its group. Later ones end a process that does not get to its end by itself.
_SAME_ORDER_SECONDS = 1.0


# Of Linux' prctl: the signal that a process gets when its parent dies.
_PR_SET_PDEATHSIG = 1


class Order(Enum):
    """What SIGTERM means."""

    #: Leave the run as soon as the coordinator lets go.
    LEAVE = "leave"
    #: End at once.
    END = "end"


class Joined(Protocol):
    """A run that this process has joined, as far as signals are concerned."""

    @property
    def over(self) -> bool:
        """Whether it has ended, for all workers or for this one."""

    @property
    def told(self) -> bool:
        """Whether it was told to end, and will."""

    def leave(self) -> Optional[BaseException]:
        """Leaves it; gives back what the process ends by, none where that comes later."""


# Runs that go on, by their id: a dict's operations are whole also where a signal or another thread
# comes between two of them.
_joined: Dict[int, "weakref.ref[Joined]"] = {}
# The process that has joined them, and when it was told to end.
_process = 0
_told: Optional[float] = None
# Whether a worker's notice is over: what comes then is no part of the first order.
_overdue = False
_looks: Optional[threading.Thread] = None


def watch(run: Joined) -> None:
    """From now on SIGTERM makes `run` leave, if the handler is there or can be."""
    global _process, _told, _overdue
    _process, _told, _overdue = os.getpid(), None, False
    _joined[id(run)] = weakref.ref(run)
    _look_for_notice()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _set(_end)
    # The launcher sets it. Who has started a worker by hand may want to see where it was.
    if "CODEDGRAD_LOG" in os.environ and sys.excepthook is sys.__excepthook__:
        sys.excepthook = _told_shortly


def follow_the_launcher() -> None:
    """In a process of `codedgrad run`: SIGTERM comes when that dies, whatever it dies of.

    What it is killed by, it cannot pass on. Elsewhere than on Linux a worker notices when its
    coordinator does not answer any more, which ends with the launcher.
    """
    if "CODEDGRAD_LOG" not in os.environ or not sys.platform.startswith("linux"):
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    except (AttributeError, OSError, TypeError):
        pass


def _told_shortly(kind: Any, error: BaseException, trace: Any) -> None:
    """`sys.excepthook`: one line for Ctrl-C."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    place = "" if trace is None else f", at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    print(f"codedgrad: interrupted (Ctrl-C){place}", file=sys.stderr)


def notice_is_over() -> None:
    """A worker that leaves has had its time: it leaves at once, as for a second SIGTERM."""
    global _overdue
    if _open():
        _overdue = True
        os.kill(os.getpid(), signal.SIGTERM)


def _look_for_notice() -> None:
    """Has a thread look for the file, where the environment names one."""
    global _looks
    path = os.environ.get(_NOTICE_FILE)
    if path and _looks is None:
        # One of an earlier notice says nothing of this process.
        there = os.path.exists(path)
        _looks = threading.Thread(target=_look, args=(path, there), daemon=True)
        _looks.start()


def _look(path: str, there: bool) -> None:
    while True:
        time.sleep(_LOOK_SECONDS)
        before, there = there, os.path.exists(path)
        if there and not before and _open():
            os.kill(os.getpid(), signal.SIGTERM)


def unwatch(run: Joined) -> None:
    """`run` is over, or left. SIGTERM has its default action again after the last one."""
    _joined.pop(id(run), None)
    # While the process ends, the handler is there for a second SIGTERM.
    if _told is None and not _open():
        _reset()


def _open() -> List[Joined]:
    found = [reference() for reference in list(_joined.values())]
    return [run for run in found if run is not None and not run.over and not run.told]


def _end(number: int, frame: Any) -> None:
    """The handler: leaves all runs, and ends the main thread by an exception."""
    global _told
    if os.getpid() == _process:
        again = _told is not None and time.monotonic() - _told < _SAME_ORDER_SECONDS
        if again and not _overdue:
            return
        runs = _open()
        if runs:
            # Said first: the next signal may come within this one's handler.
            _told = time.monotonic()
            for error in [run.leave() for run in runs]:
                if error is not None:
                    raise error
            return
    _reset()
    os.kill(os.getpid(), signal.SIGTERM)


def _set(action: Any) -> None:
    try:
        signal.signal(signal.SIGTERM, action)
    except ValueError:
        # Not in the main thread, which alone may do it. Without a run the handler does what the
        # default action does.
        pass


def _reset() -> None:
    if signal.getsignal(signal.SIGTERM) is _end:
        _set(signal.SIG_DFL)


def _forked() -> None:
    """In a forked child: runs are its parent's, and SIGTERM ends it also where no Python runs."""
    global _told, _looks
    _joined.clear()
    _told = _looks = None
    _reset()


def _at_exit() -> None:
    """The interpreter ends: its handlers go before the process does."""
    if _told is not None and signal.getsignal(signal.SIGTERM) is _end:
        _set(signal.SIG_IGN)


os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
