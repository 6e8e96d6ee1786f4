"""The event loop of a run, once, and two of the ways in which users go through it.

`turns` is the loop: it gives events, and settles each when the next one is asked for. `events`
opens each event for the user at once. `steps` puts events together to steps: within the inner loop
of a step, which is where its events are opened, the loop goes on until the step is decided. The
third way, for loops that stay as they are, is `_torch.iterations`'.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

from . import signals
from .loops import loop_of
from .session import Session
from .states import State
from .tasks import Task
from .units import Totals


class Compute:
    """Micro-batches to compute; iterate over it to its end: a worker that gives up what is wanted
    has left the run."""

    step: int
    """Which step they are a part of."""

    _decides = False

    def __init__(self, session: Session, step: int, batch: int):
        self.step = step
        self._session = session
        self._batch = batch
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise RuntimeError("the micro-batches of a task can be iterated over only once")
        self._begun = True
        return loop_of(self._units(), self._session.parting.units_left)

    def _task(self) -> Task:
        return Task(self._session, self.step, self._batch)

    def _units(self) -> Iterator[Any]:
        # The time that it takes begins with the first unit.
        yield from self._task().units()

    def _open(self) -> None:
        pass

    def _settle(self) -> None:
        pass


class Apply:
    """A decided step, whose gradient is there: apply it."""

    step: int
    """Which one it is."""
    totals: Totals
    """As `Step.totals`."""

    _decides = True

    def __init__(self, session: Session, step: int):
        self.step = step
        self.totals = Totals()
        self._session = session

    @property
    def gradients(self) -> List[Any]:
        """As `Step.gradients`."""
        return self._session.arrays.gradients()

    def _open(self) -> None:
        self.totals = self._session.show(self.step)

    def _settle(self) -> None:
        self._session.applied(self.step)


class Skip:
    """A step that no worker may apply: count it."""

    step: int
    """Which one it is."""
    units: List[Tuple[int, int]]
    """As `Step.skipped`."""

    _decides = True

    def __init__(self, session: Session, step: int, units: List[Tuple[int, int]]):
        self.step = step
        self.units = units
        self._totals = Totals()
        self._session = session

    def _open(self) -> None:
        self._totals = self._session.refuse(self.step, self.units)

    def _settle(self) -> None:
        self._session.applied(self.step)


class Resync:
    """This replica takes over another one's state, with the next event or by `load`."""

    next_step: int
    """The first step that is not applied in it."""

    _decides = True

    def __init__(self, session: Session, next_step: int):
        self.next_step = next_step
        self._session = session
        self._begun = False
        # Whether it fitted.
        self._loaded = False

    def load(self) -> None:
        """Loads the state now."""
        if not self._begun:
            self._begun = True
            self._loaded = self._session.load_state(self.next_step)

    def _open(self) -> None:
        self._session.arrays.hide()
        self._session.state = State.TAKES_OVER

    def _settle(self) -> None:
        self.load()


class Provide:
    """Another worker needs this one's state: it is handed over with the next event, or by
    `reply`."""

    _decides = False

    def __init__(self, session: Session):
        self._session = session
        self._done = False

    def reply(self) -> None:
        """Hands the state over now."""
        if not self._done:
            self._done = True
            self._session.provide()

    def _open(self) -> None:
        pass

    def _settle(self) -> None:
        self.reply()


Event = Union[Compute, Apply, Skip, Resync, Provide]


def _next(session: Session) -> Optional[Event]:
    """The next event; none when the run is over."""
    told = session.receive()
    kind = told[0]
    if kind == "compute":
        return Compute(session, told[1], told[2])
    if kind == "apply":
        return Apply(session, told[1])
    if kind == "skip":
        return Skip(session, told[1], list(told[2]))
    if kind == "resync":
        return Resync(session, told[1])
    return Provide(session) if kind == "provide" else None


def turns(session: Session) -> Iterator[Event]:
    """The event loop: every event is settled when the next one is asked for."""
    while True:
        event = _next(session)
        if event is None:
            return
        yield event
        session.parting.check()
        # Who has left in a step's body, by `close`, has nothing to say of the step.
        if event._decides and session.parting.left:
            return
        event._settle()
        # A state that was taken over is not held while the next event is waited for.
        del event


def ended(session: Session) -> None:
    """The loop is over, or was left: optimizers, and SIGTERM, do what they do without a run."""
    session.state = State.UNDECIDED
    # A body that was left by `break` or an exception is over, too.
    session.tally.apply.end()
    session.arrays.ended()
    signals.unwatch(session.parting)


def events(session: Session) -> Iterator[Event]:
    """The run as events, opened for the user."""
    try:
        for event in turns(session):
            event._open()
            if isinstance(event, (Apply, Skip)):
                session.seed_body(event.step)
                session.tally.decided()
            yield event
            session.tally.apply.end()
    finally:
        ended(session)


class Step:
    """A step of the run; iterate over it to get the micro-batches this worker is to compute.

    There may be none (the step is decided already) or several tasks' worth. When the iteration
    ends, the gradient of the whole batch is there, the same bytes on every worker.
    """

    index: int
    """Which step it is; settled when the inner loop is over."""
    skipped: Optional[List[Tuple[int, int]]]
    """If the step was refused: the units that no worker had a finite gradient of, as half-open
    ranges."""
    totals: Totals
    """Sums over the whole batch of what `Micro.report` was told: NaN where it was not finite for
    some unit, and for a refused step."""

    def __init__(self, session: Session, first: Event, turns: Iterator[Event]):
        assert isinstance(first, (Compute, Apply, Skip))
        self.index = first.step
        self.skipped = None
        self.totals = Totals()
        self._state = State.UNDECIDED
        self._session = session
        self._first = first
        self._turns = turns
        self._begun = False
        self._before = session.arrays.fingerprint()
        # What is loaded when the body is over, if the run is.
        self._undo: Sequence[bytes] = ()

    @property
    def applied(self) -> bool:
        """Whether there is a gradient: false if the step was refused, left out by taking over a
        state, or the run has ended."""
        return self._state is State.APPLIED

    @property
    def resynced(self) -> bool:
        """Whether this replica takes over another one's state after the body: it was too far
        behind."""
        return self._state is State.TAKES_OVER

    @property
    def gradients(self) -> List[Any]:
        """The gradient of the whole batch, as the run's arrays are: one array per parameter, None
        for one that no unit had a gradient of, and for all where the step was not applied.

        The arrays are written again in the next step: copy what is kept.
        """
        return self._session.arrays.gradients()

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise RuntimeError("the micro-batches of a step can be iterated over only once")
        self._begun = True
        if self._session.arrays.fingerprint() != self._before:
            raise RuntimeError(
                "what is in state= has changed between `for step in run:` and `for micro in step:`: "
                "a worker that takes over this one's state would change it twice. Do it at the end "
                "of the body"
            )
        return loop_of(self._micros(), self._session.parting.units_left)

    def _micros(self) -> Iterator[Any]:
        event: Optional[Event] = self._first
        while event is not None:
            event._open()
            if isinstance(event, Compute):
                self.index = event.step
                yield from event._units()
            elif event._decides:
                break
            event = next(self._turns, None)
        self._decide(event)

    def _decide(self, event: Optional[Event]) -> None:
        """What became of the step: the event that tells it, none if the run is over."""
        session = self._session
        if isinstance(event, Apply):
            self.index, self.totals = event.step, event.totals
        elif isinstance(event, Skip):
            self.index, self.totals, self.skipped = event.step, event._totals, event.units
        elif isinstance(event, Resync):
            self.index = event.next_step - 1
        else:
            # The body runs without a gradient; what it counts is taken back.
            self._undo = session.arrays.undo()
            session.arrays.hide()
            session.state = State.OVER
        self._state = session.state
        session.seed_body(self.index)
        if isinstance(event, (Apply, Skip)):
            session.tally.decided()
        else:
            session.tally.apply.begin()

    def _settle(self) -> None:
        """The body is over; what the loop has told of the step is settled by the loop."""
        if self._state is State.UNDECIDED:
            if self._begun:
                raise RuntimeError(
                    f"step {self.index} was left before its micro-batches were done: do not "
                    "`break` out of `for micro in step:`"
                )
            raise RuntimeError(
                f"step {self.index} was not iterated over: its body begins with "
                "`for micro in step:`"
            )
        if self._undo:
            self._session.arrays.load(self._undo)
            self._undo = ()

    def __repr__(self) -> str:
        return f"Step(index={self.index}, applied={self.applied})"

    def _no_number(self, *_: object) -> Any:
        raise TypeError("a step is no number: write step.index, by which steps are counted")

    # What loops over `range(steps)` do with a step.
    __index__ = __int__ = __float__ = __neg__ = _no_number
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _no_number
    __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = _no_number
    __lt__ = __le__ = __gt__ = __ge__ = __pow__ = __rpow__ = __divmod__ = _no_number

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float)):
            self._no_number()
        return self is other

    __hash__ = object.__hash__


def steps(session: Session) -> Iterator[Step]:
    """The run as steps."""
    told = turns(session)
    try:
        for event in told:
            if isinstance(event, (Resync, Provide)):
                # Between two steps nothing looks on: it is settled by the loop.
                continue
            step = Step(session, event, told)
            yield step
            session.tally.apply.end()
            session.parting.check()
            if session.parting.left:
                return
            step._settle()
    finally:
        ended(session)
