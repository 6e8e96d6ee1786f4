"""Warnings that Python shows at the user's line, however deep in the package they arise."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from typing import Type

# The package's own, and what wraps `join`.
_within = [os.path.dirname(os.path.dirname(__file__)) + os.sep, contextlib.__file__]


def pass_over(path: str) -> None:
    """Shows no warning at a line of this file either: it calls the package for the user."""
    _within.append(path)


def is_own(path: str) -> bool:
    """Whether a file is the package's own, or was given to `pass_over`."""
    return path.startswith(tuple(_within))


def renamed(old: str, new: str) -> None:
    """Warns, at the line that uses it, of an old name that 0.2 removes."""
    warn(f"{old} is called {new} now: the old name goes in 0.2", DeprecationWarning)


def warn(text: str, kind: Type[Warning] = RuntimeWarning) -> None:
    """Warns at the innermost line that is not the package's own."""
    level, frame = 1, sys._getframe()
    # How many frames lie between depends on the loop: generators and callbacks come between.
    while frame.f_back is not None and is_own(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, kind, stacklevel=level)
