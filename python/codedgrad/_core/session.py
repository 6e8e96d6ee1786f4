"""What a run's loop works with: the native worker, the arrays, and what is done with both.

Nothing here knows in which order steps go; `steps` does, and calls this.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .. import _native
from . import signals
from .arrays import Arrays
from .exits import Replaced, RunOver, refusal
from .joining import Settings, Where
from .parting import Parting
from .scalars import Scalars
from .seeds import seed_python, unit_seed
from .states import State
from .tally import Tally
from .units import Totals
from .warn import warn


class Session:
    """A worker in a run, from `join` on; its `Progress`."""

    def __init__(self, where: Where, settings: Settings, arrays: Arrays):
        self.settings = settings
        self.arrays = arrays
        self.native = where.connect(settings)
        self.scalars = Scalars(settings, where.trained, where.versions)
        self.tally = Tally(arrays.span)
        notice = where.called.notice
        self.parting = Parting(self.native, arrays.release, notice, where.told_to_end)
        self.state = State.UNDECIDED
        # Whether this worker has ended the run for all.
        self._finishes = False
        self._took_part = False
        # Bytes that this process had read and written of gradients before.
        self._host_bytes = sum(_native.passes().values())
        # No other goes on without a worker that is alone: SIGTERM just ends its process.
        if not where.alone:
            signals.watch(self.parting)
        arrays.joined(self)

    @property
    def over(self) -> bool:
        """Whether the run has ended, for all workers or for this one."""
        return self.parting.over

    def finish(self) -> None:
        """Ends the run for all workers after the step that is open."""
        self._finishes = True
        self.native.finish()

    def receive(self) -> Tuple[Any, ...]:
        """The next event, as the native worker tells it."""
        self.parting.check()
        try:
            with self.tally.wait:
                event = self.native.next()
        except _native.Replaced as error:
            self.parting.left = True
            raise Replaced(str(error)) from None
        except _native.Refused as error:
            self.parting.left = True
            raise refusal(error) from None
        except ConnectionError:
            self.parting.check()
            raise
        assert event is not None, "it is waited for ever"
        if event[0] == "over":
            self.parting.ended = True
            self._check_end()
        self._took_part = True
        return event

    def _check_end(self) -> None:
        """Says so if the run is over before its last step."""
        done, steps = self.native.next_step, self.settings.steps
        if done >= steps:
            return
        if self.parting.leaving:
            raise self.parting.let_go()
        if self._finishes:
            return
        if not self._took_part:
            over = RunOver()
            print(f"codedgrad: {over}", file=sys.stderr)
            raise over
        why = self.native.why_over or "its coordinator has ended it"
        warn(f"the run is over with {done} of {steps} steps: {why}")

    def seed_unit(self, batch: int, unit: int) -> None:
        """Before a unit is computed: what is drawn for it depends on it alone."""
        self._seed(self.settings.unit_seed(batch, unit, "unit"))

    def seed_body(self, step: int) -> None:
        """Before a step's body: what it draws is drawn by every replica alike."""
        self._seed(unit_seed(self.settings.seed or 0, step, 0, "step"))

    def _seed(self, seed: int) -> None:
        if self.settings.seed is None:
            return
        if self.settings.seed_all:
            seed_python(seed)
        self.arrays.seed(seed)

    def show(self, step: int) -> Totals:
        """Shows the user the decoded gradient; gives back the totals."""
        with self.tally.give:
            there, totals = self.scalars.decoded(self.native.tail())
            self.arrays.show(there, self.scalars.factor(totals), self.native)
        self.state = State.APPLIED
        self.tally.counts["applied"] += 1
        self.scalars.warn_of_nonfinite(step, totals)
        return totals

    def refuse(self, step: int, units: List[Tuple[int, int]]) -> Totals:
        """A step that no worker applies: there is no gradient; gives back totals that say so."""
        self.arrays.hide()
        self.state = State.SKIPPED
        self.tally.counts["skipped"] += 1
        if self.tally.counts["skipped"] == 1:
            shown = ", ".join(
                f"{start}" if end == start + 1 else f"{start} to {end - 1}" for start, end in units
            )
            warn(
                f"step {step} was refused: no worker had a finite gradient of units {shown}. "
                'Further ones are counted in report()["skipped"], with prepare in '
                'model.run.work()["skipped"]'
            )
        return self.scalars.refused()

    def applied(self, step: int) -> None:
        """A decided step's body is over: it is applied here, or counted."""
        self.native.applied(self.arrays.digests() if self._is_verified(step + 1) else None)
        self.arrays.applied()
        self.state = State.UNDECIDED

    def _is_verified(self, next_step: int) -> bool:
        verify = self.settings.verify
        return verify > 0 and next_step > 0 and next_step % verify == 0

    def provide(self) -> None:
        """Hands this replica over to another worker."""
        with self.tally.state:
            state = self.arrays.save()
            self.native.provide([len(each) for each in state], state)

    def load_state(self, next_step: int) -> bool:
        """Takes over another worker's replica, or tells its coordinator that it does not fit; gives
        back which."""
        self.state = State.UNDECIDED
        if next_step < self.settings.first:
            raise ValueError(
                f"first is {self.settings.first} here, and the run stands at step {next_step}: worker "
                "0 has begun without this checkpoint. Load the same one on all workers, from a disk "
                "that all hosts share"
            )
        state = self.native.state()
        before = self.arrays.undo()
        try:
            with self.tally.state:
                self.arrays.load(state)
        except Exception as error:  # whatever a library says of a state that does not fit
            if before:
                self.arrays.load(before)
            warn(f"the state of another worker does not fit: {str(error).splitlines()[0]}")
            self.native.refuse(str(error))
            return False
        self.tally.counts["resyncs"] += 1
        self.native.taken([self.arrays.digests()] if self._is_verified(next_step) else [])
        return True

    def report(self) -> Dict[str, Any]:
        """What this worker did, as `Run.report` gives it."""
        moved = self.arrays.report()
        copied = sum(each["bytes"] for of in moved.values() for each in of.values())
        passed = sum(_native.passes().values()) - self._host_bytes + copied
        seconds = self.tally.seconds()
        return {**self.tally.counts, "seconds": seconds, "host_bytes": passed, **moved}

    def metrics(self) -> Dict[str, float]:
        """Of the last decided step, as `Membership.metrics` gives them."""
        native, counts = self.native, self.tally.metrics(self.settings.units / self.native.workers)
        late = native.late_workers
        return counts if late is None else {**counts, "coded/late_workers": float(late)}
