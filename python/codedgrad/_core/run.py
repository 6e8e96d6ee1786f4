"""A worker's part in a run, as users have it, whatever the arrays are.

How a step goes through its states (`states.State`):

```text
for step in run:              UNDECIDED <--+  compute: units, which the inner loop yields
    for micro in step:            |  |     |  provide: the replica is handed over
        ...                       |  +-----+
    (the inner loop ends)         |
                                  +-- apply --> APPLIED      the gradient is shown
                                  +-- skip ---> SKIPPED      there is no gradient, for any worker
                                  +-- resync -> TAKES_OVER   there is none here
                                  +-- over ---> OVER         there is none any more
    body                      runs once in each of these states, with the same random numbers
(the next step is asked for)  APPLIED, SKIPPED: reported, with the replica's digest
                              TAKES_OVER: the other worker's state is loaded
                              OVER: what was there before the body is loaded again
```

A step that is decided when this worker comes to it has no units, and a late worker's task ends
between two units. What a body counts (schedules, scalers) is thus counted once for every step on
every replica: where it ran without a gradient, the state that is loaded after it says the right
number. Between two steps, and in the loop over `events()`, the same events come one by one.

The layers, from the top: `Run` is what users see, and does nothing itself. `steps` has the event
loop, events and steps. `tasks` computes the units of a task. `session` has what they all work
with: the native worker, the arrays (`arrays`), the scalars beside a gradient (`scalars`), the
state of the open step, and how the run is left (`parting`). Joining is `joining`'s.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Tuple, final

from . import signals
from .joining import Settings, scheme_of
from .arrays import Arrays
from .loops import loop_of
from .parting import How
from .session import Session
from .steps import events, steps

signals.follow_the_launcher()


class Membership:
    """What a worker sees of its run, whichever way its script came in."""

    worker: int
    """This worker's number, from 0."""
    workers: int
    """How many workers the run has."""
    first: int
    """The first step that was not applied when it joined."""
    scheme: str
    """The scheme's text, if the coordinator says it."""
    settings: Settings
    """What `join` or `prepare` was told of the run."""

    def __init__(self, session: Session):
        self._session = session
        native = session.native
        self.settings = session.settings
        self.worker = native.worker
        self.workers = native.workers
        self.first = native.next_step
        self.scheme = scheme_of(native) or "uncoded"

    @property
    def over(self) -> bool:
        """Whether the run has ended, for all workers or for this one."""
        return self._session.over

    @property
    def complete(self) -> bool:
        """Whether all steps of the run are applied here."""
        return self._session.native.next_step >= self.settings.steps

    @property
    def saver(self) -> bool:
        """Whether this worker is the one that saves and logs: the live one of the lowest number.

        Where it is lost, the next one is told with the next step.
        """
        saver = self._session.native.saver
        return self.worker == (0 if saver is None else saver)

    @property
    def leaving(self) -> bool:
        """Whether this worker was told to end (SIGTERM, or the file CODEDGRAD_NOTICE_FILE): it goes
        on until the step is decided and no worker needs it; then `Left` is raised where the loop asks
        for more. A script that may be the last of its job saves what it needs in the body."""
        return self._session.parting.leaving

    def finish(self) -> None:
        """Ends the run for all workers after the step that is open: early stopping.

        In the body of a step that one is decided, and the next one is open or decided by now: it is
        applied too. This worker goes on iterating until it is told that the run is over. If it leaves
        instead (`break`) and the others cannot do that next step without it, the run ends before.
        """
        self._session.finish()

    def traffic(self) -> Tuple[int, int]:
        """Bytes sent and received so far."""
        return self._session.native.traffic()

    def metrics(self) -> Dict[str, float]:
        """Numbers of the last committed step for a logger, under names that begin with `coded/`:
        seconds by phase, work, late workers, and how many steps were applied and skipped so far.

        docs/records.md says what each is. No device is waited for, and nothing is sent."""
        return self._session.metrics()

    def digest(self) -> int:
        """The digest of this replica's parameters, equal on all workers after equal steps. All ranks
        of a worker that shard the model call it."""
        return self._session.arrays.digest()


def arrays_of(member: Membership) -> Arrays:
    """The arrays of a run, for what a library of arrays adds to it."""
    return member._session.arrays


@final
class Run(Membership):
    """A worker's part in a run: iterate over it for its steps, or over `events()`.

    `worker` is this worker's number and `workers` how many there are, `scheme` the scheme's text
    and `first` the first step that was not applied when it joined; `saver` is true on the one that
    logs and saves.

    A loop that ends by `break`, and a process that ends with status 0, leave the run for good. One
    that ends by an exception counts as lost: what it had is computed by others, or waits for its
    return. Used in a `with` statement the run is left at the end.
    """

    def __init__(self, session: Session):
        super().__init__(session)
        self._started = False

    def close(self) -> None:
        """Leaves the run for good: what was begun others do, and no worker waits for this one. Can
        be called twice."""
        self._session.parting.part("its part in the run was closed", How.FOR_GOOD)

    def report(self) -> Dict[str, Any]:
        """What this worker did: units computed and given up, steps applied and skipped, resyncs,
        and its seconds by phase (computing units, waiting, taking and giving gradients, applying
        them).

        `host_bytes` counts what this process has read and written of the host's memory for
        gradients: divided by 4 x numbers x steps, *passes* per step. On accelerators `device` has
        the bytes that went out and back, and the seconds that the trainer waited for them."""
        return self._session.report()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], *_: object) -> None:
        if error is not None:
            self._session.parting.fail(error)
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self._loop(steps(self._session))

    def events(self) -> Iterator[Any]:
        """The run as events, for loops that cannot be turned inside out.

        `Compute` is iterated over for micro-batches; with `Apply` the gradient is there; `Skip`
        counts a step that no worker applies; `Resync` and `Provide` load and hand over the replica.
        An event is settled when the next one is asked for.
        """
        return self._loop(events(self._session))

    def _loop(self, iterator: Iterator[Any]) -> Iterator[Any]:
        if self._started:
            raise RuntimeError("a run can be iterated over only once: join again for another")
        self._started = True
        return loop_of(iterator, self._session.parting.loop_left)
