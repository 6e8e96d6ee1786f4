"""Gradient coding: data-parallel training at the speed of the fast workers, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._native import __version__ as __version__

if TYPE_CHECKING:
    from ._records import Candidate as Candidate
    from ._records import Cause as Cause
    from ._records import Code as Code
    from ._records import FailedSet as FailedSet
    from ._records import FrontPoint as FrontPoint
    from ._records import GainInterval as GainInterval
    from ._records import OverShare as OverShare
    from ._records import Plan as Plan
    from ._records import RoundTime as RoundTime
    from ._records import Simulation as Simulation
    from ._records import SlowAnswers as SlowAnswers
    from ._records import StragglerWindow as StragglerWindow
    from ._records import TraceStats as TraceStats
    from ._records import Verification as Verification
    from ._torch.recorder import Recorder as Recorder
    from ._torch.recorder import record as record
    from ._tools import code as code
    from ._tools import plan as plan
    from ._tools import simulate as simulate
    from ._tools import trace_stats as trace_stats

# What is loaded when it is first asked for, and from where: NumPy and PyTorch take longer than all the
# rest.
_LAZY = {
    **dict.fromkeys(["Recorder", "record"], "_torch.recorder"),
    **dict.fromkeys(["code", "plan", "simulate", "trace_stats"], "_tools"),
    **dict.fromkeys(
        "Candidate Cause Code FailedSet FrontPoint GainInterval OverShare Plan RoundTime Simulation SlowAnswers "
        "StragglerWindow TraceStats Verification".split(),
        "_records",
    ),
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
