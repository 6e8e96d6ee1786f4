"""A task: units that this worker is to compute, one after the other, and then hands in together."""

from __future__ import annotations

from typing import Iterator, Optional

from .. import _native
from .scalars import TaskScalars
from .session import Session
from .units import Micro


class Task:
    """A task: `unit()` gives the next unit, `take()` takes its gradient, `submit()` hands all in.

    `units()` does all of this for a loop that can be turned inside out.
    """

    def __init__(self, session: Session, step: int, batch: int):
        self.step = step
        self.batch = batch
        self._session = session
        self._scalars = TaskScalars(session.scalars)
        self._parts = session.native.parts()
        self._taken = 0
        self._began = session.tally.lap()

    def goes_on(self) -> bool:
        """Whether there is another unit, and the task is still wanted."""
        return self._taken < len(self._parts) and self._session.native.wanted()

    def unit(self) -> Optional[Micro]:
        """The next unit, whose random numbers are seeded; none when the task does not go on."""
        if not self.goes_on():
            return None
        session = self._session
        arrays = session.arrays
        part = self._parts[self._taken]
        micro = arrays.micro(session.settings, self.batch, self.step, part)
        micro.begins = self._taken == 0
        micro.ends = self._taken + 1 == len(self._parts)
        session.parting.unit = micro
        session.seed_unit(self.batch, micro.unit)
        arrays.prepare(micro, session.native)
        return micro

    def take(self, micro: Micro) -> None:
        """The unit is computed: takes its gradient and what it reports."""
        session, tally = self._session, self._session.tally
        session.parting.check()
        tally.computed += tally.lap() - self._began
        with tally.take:
            there = session.arrays.collect(micro, session.native)
            self._scalars.add(micro, there)
        session.parting.unit = None
        self._taken += 1
        self._began = tally.lap()

    def submit(self) -> None:
        """Hands the task in."""
        try:
            with self._session.tally.take:
                finite = self._session.arrays.settle()
                wanted = self._session.native.submit(self._scalars.tail(), finite)
        except _native.Changed as error:
            # Another rank's has its text alone.
            if len(error.args) == 1:
                raise
            _, unit, first, last = error.args
            raise RuntimeError(
                f"step {self.step}: the gradient of {self._session.arrays.named(first, last)} in "
                f"micro-batch {unit} of batch {self.batch} was changed after backward() had "
                "submitted it. Pass overlap=False if the script calls backward() twice per "
                "micro-batch or writes p.grad before the step is committed"
            ) from None
        self._session.tally.counts["units" if wanted else "abandoned"] += self._taken

    def units(self) -> Iterator[Micro]:
        """The units; each is taken when the next one is asked for, and the task is handed in at the
        end."""
        while True:
            micro = self.unit()
            if micro is None:
                break
            yield micro
            self.take(micro)
        self.submit()
