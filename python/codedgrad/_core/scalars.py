"""The auxiliary scalars that travel beside a gradient, and are decoded with it.

They are, in this order: a one for every unit; a number made of the versions of whoever computed it;
for every array, how many units have a gradient of it; and what the units report. All of them are
sums over units, each times its coefficient, so that after the decode every unit counts once.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, List, Optional, Sequence, Tuple

from .joining import Settings
from .units import Micro, Totals
from .warn import warn

_ONES = 0
_VERSIONS = 1
_BEFORE = 2


def _versions_number(versions: str) -> int:
    # Small enough that its sum over a batch is exact, and tells of a difference after a decode
    # with real weights.
    digest = hashlib.blake2b(versions.encode(), digest_size=2).digest()
    return int.from_bytes(digest, "little")


def head_of(arrays: int) -> int:
    """How many of them come before what units report."""
    return _BEFORE + arrays


class Scalars:
    """The auxiliary scalars of a run, and what is known of them here."""

    def __init__(self, settings: Settings, arrays: int, versions: str):
        self.arrays = arrays
        self.version = _versions_number(versions)
        # How many each unit reports: known once one has, or a step has come without.
        self.reported: Optional[int] = None
        self.warned_of_versions = False
        self._settings = settings
        self._versions = versions
        self._warned_of_nonfinite = False

    def factor(self, totals: Sequence[float]) -> float:
        """What a decoded sum of gradients is multiplied with."""
        settings = self._settings
        if settings.reduction == "mean":
            return 1.0 / (settings.units * settings.micro_steps)
        if settings.reduction == "tokens":
            return 1.0 / totals[1] if totals[1] else 0.0
        return 1.0

    def decoded(self, tail: Sequence[float]) -> Tuple[List[bool], Totals]:
        """Which arrays have a gradient, and what was reported, of a decoded step."""
        self._compare_versions(tail)
        end = head_of(self.arrays)
        totals = Totals(tail[end:])
        if self.reported is None:
            self.reported = len(totals)
        # A count is a whole number but for the rounding of decode weights.
        return [count > 0.5 for count in tail[_BEFORE:end]], totals

    def refused(self) -> Totals:
        """The totals of a step that no worker applies, which say so."""
        return Totals((math.nan,) * (self.reported or 0))

    def check_reported(self, micro: Micro) -> None:
        """Raises ValueError if a unit reports another number of scalars than those before."""
        found = len(micro.scalars)
        if self.reported is None:
            self.reported = found
        if found != self.reported:
            raise ValueError(
                f"unit {micro.unit} of batch {micro.batch} reports {found} scalars, where "
                f"those before reported {self.reported}: every unit reports equally many"
            )
        if self._settings.reduction == "tokens" and found < 2:
            raise ValueError(
                f"unit {micro.unit} of batch {micro.batch} does not say how many tokens it has: "
                'with reduction="tokens" write micro.report(loss, tokens)'
            )

    def warn_of_nonfinite(self, step: int, totals: Totals) -> None:
        """Says so once if a sum of scalars is not finite."""
        places = [place for place, total in enumerate(totals) if not math.isfinite(total)]
        if not places or self._warned_of_nonfinite:
            return
        self._warned_of_nonfinite = True
        warn(
            f"scalar {places[0]} that some unit of step {step} reports is not finite, so that "
            f"totals[{places[0]}] is nan; the gradient is finite, and is applied. Further ones are "
            "not told"
        )

    def _compare_versions(self, tail: Sequence[float]) -> None:
        ones = tail[_ONES]
        if self.warned_of_versions or ones < 0.5:
            return
        # Decode weights are real numbers: equal ones need not give a whole number back.
        if abs(tail[_VERSIONS] / ones - self.version) < 1e-3 + 1e-6 * self.version:
            return
        self.warned_of_versions = True
        warn(
            f"some worker of this run has other versions than this one ({self._versions}): their "
            "gradients may differ in the last bits"
        )


class TaskScalars:
    """Those of a task, while its units are computed."""

    def __init__(self, scalars: Scalars):
        self._scalars = scalars
        self._head = [0.0] * head_of(scalars.arrays)
        self._reported: List[Tuple[float, Tuple[Any, ...]]] = []

    def add(self, micro: Micro, there: Sequence[bool]) -> None:
        """Adds those of a unit, which has a gradient of the arrays that are `there`.

        Raises ValueError for a unit that reports another number of scalars than those before.
        """
        self._scalars.check_reported(micro)
        coefficient = micro.coefficient
        self._head[_ONES] += coefficient
        self._head[_VERSIONS] += coefficient * self._scalars.version
        for place, has in enumerate(there, _BEFORE):
            if has:
                self._head[place] += coefficient
        self._reported.append((coefficient, micro.scalars))

    def tail(self) -> List[float]:
        """All of them, as they are sent."""
        totals = [0.0] * len(self._reported[0][1]) if self._reported else []
        for coefficient, scalars in self._reported:
            for place, scalar in enumerate(scalars):
                totals[place] += coefficient * float(scalar)
        return self._head + totals
