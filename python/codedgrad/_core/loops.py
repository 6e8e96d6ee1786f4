"""Iterators that tell how a loop over them is left, where generators lie between as well.

`_native.Loop` sees the exception that unwinds the frame of its `for`. A generator around a loop, as
of a progress bar, hides it: Python puts the exception aside while it closes the generator, which
gets a `GeneratorExit` in its place, without any word of the exception. From Python 3.13 on one
without `try` gets nothing at all: what looks like `break` may be an exception then.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any, Callable, Iterator, Optional

from .. import _native

_IS_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def loop_of(
    iterator: Iterator[Any], left: Callable[[Optional[BaseException]], object]
) -> Iterator[Any]:
    """An iterator for one `for`, which calls `left` if it is left before its end: with the exception
    that leaves it, a GeneratorExit if that is hidden by a generator, or none after `break`."""
    asked = _Asked(iterator)

    def told(error: Optional[BaseException]) -> None:
        if error is None and asked.is_hidden_from(sys._getframe(1)):
            error = GeneratorExit()
        left(error)

    return _native.Loop(asked, told)


class _Asked:
    """An iterator that knows whether a generator asks for its items."""

    def __init__(self, iterator: Iterator[Any]):
        self._iterator = iterator
        # Of the frame that asked last, if it is a generator's. A reference would keep it alive.
        self._generator: Optional[int] = None

    def __iter__(self) -> "_Asked":
        return self

    def __next__(self) -> Any:
        frame = sys._getframe(1)
        self._generator = id(frame) if frame.f_code.co_flags & _IS_GENERATOR else None
        return next(self._iterator)

    def is_hidden_from(self, frame: FrameType) -> bool:
        """Whether a generator that is not itself at work, asked last: another closes it."""
        return self._generator is not None and self._generator != id(frame)
