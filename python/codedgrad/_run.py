"""A worker's part in a run: steps, micro-batches and events, whatever the arrays are.

`Run` drives the native worker. What depends on the arrays' library is left to subclasses, which
`codedgrad.loop` (numpy) and `codedgrad.torch` have: how a unit is prepared, how its gradient is
collected, how a decoded one is shown, and how a replica is handed over, loaded and hashed.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import math
import os
import random
import struct
import sys
import threading
import time
import traceback
import warnings
from dataclasses import dataclass
from typing import Any, Dict, Generator, Iterator, List, Optional, Sequence, Tuple, Union

import numpy

from . import _native
from . import _signals

_signals.follow_the_launcher()

REDUCTIONS = ("mean", "sum", "tokens")

# What helps where a worker differs from the run.
_HINTS = {
    "layout": "it is of the names, shapes and formats of what is trained, of the kinds of optimizers "
    "and their groups, the names in state=, and of reduction, seed, seed_all and verify",
    "not trained": "frozen parameters must be the same on all workers",
    "to begin with": "build the model from one seed on all workers, or load one checkpoint; buffers "
    "count too",
}

# What stands in every tail before the counts of arrays and the user's own scalars: a one for every
# unit, and a number made of the versions of whoever computed it.
_ONES = 0
_VERSIONS = 1
_BEFORE = 2


# A file, named by the environment, in which a worker says that starting it again would not help: in
# its first line how it came to that, then why.
_FINAL = "CODEDGRAD_FINAL"


def _say_final(how: str, why: object) -> None:
    """Tells who has started this process that its error is final; the first one is told."""
    path = os.environ.get(_FINAL)
    if path:
        # It is no part of the error that it cannot be told.
        with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:
            file.write(f"{how}\n{why}\n")


def _take_back_final() -> None:
    """What was said is not so: the run was joined after all."""
    path = os.environ.get(_FINAL)
    if path:
        with contextlib.suppress(OSError):
            os.remove(path)


@contextlib.contextmanager
def final_errors() -> Iterator[None]:
    """What is wrong with the arguments of `join` is wrong in every life of a process."""
    try:
        yield
    except _native.NotNow:
        raise
    except (TypeError, ValueError) as error:
        _say_final("failed", error)
        raise


def _refusal(error: BaseException) -> ValueError:
    """The run refuses this worker, which it does for good: the error that says what helps."""
    hints = [f". {hint}" for word, hint in _HINTS.items() if word in str(error)]
    _say_final("refused", error)
    return ValueError(f"{error}{''.join(hints)}")


class RunOver(SystemExit):
    """The run was over before this worker had any part in it: its model is not trained.

    A `SystemExit` with status 0, so that a script which is started again too late ends quietly.
    """

    def __init__(self) -> None:
        super().__init__(0)

    def __str__(self) -> str:
        return "the run was over before this worker had any part in it: its model is not trained"


class Replaced(SystemExit):
    """Another process has this worker's number now; the run goes on with that.

    A `SystemExit` with status 4, by which a supervisor knows not to start the script again.
    """

    def __init__(self, text: str = "this worker was replaced") -> None:
        super().__init__(4)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Left(SystemExit):
    """This process was told to end by SIGTERM: it has left the run, which goes on without it.

    A `SystemExit` with status 0, since it ends on purpose.
    """

    def __init__(self, text: str = "this worker has left the run") -> None:
        super().__init__(0)
        self.text = text

    def __str__(self) -> str:
        return self.text


def whole(name: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`, or a ValueError that names it."""
    try:
        number = int(value.__index__())  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise TypeError(f"{name} is {value!r}: it must be a whole number") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}: it must be a whole number")
    if number < least:
        raise ValueError(f"{name} is {number}: it must be {least} or more")
    return number


@dataclass(frozen=True)
class Settings:
    """What a worker says of its run; the same for all of its workers."""

    units: int
    steps: int
    first: int = 0
    micro_steps: int = 1
    unit_samples: int = 1
    reduction: str = "mean"
    seed: Optional[int] = 0
    seed_all: bool = False
    verify: int = 1

    def check(self) -> "Settings":
        """The same with whole numbers.

        Raises ValueError or TypeError that names the one that is wrong.
        """
        if self.reduction not in REDUCTIONS:
            raise ValueError(
                f"reduction is {self.reduction!r}: it is one of {', '.join(map(repr, REDUCTIONS))}"
            )
        steps, first = whole("steps", self.steps, 1), whole("first", self.first, 0)
        if steps <= first:
            raise ValueError(
                f"steps is {steps} and first is {first}: nothing is left to do. "
                "steps counts those before first too"
            )
        return Settings(
            units=whole("units", self.units, 1),
            steps=steps,
            first=first,
            micro_steps=whole("micro_steps", self.micro_steps, 1),
            unit_samples=whole("unit_samples", self.unit_samples, 1),
            reduction=self.reduction,
            seed=None if self.seed is None else whole("seed", self.seed, 0),
            seed_all=bool(self.seed_all),
            verify=whole("verify", self.verify, 0),
        )


def unit_seed(seed: int, batch: int, unit: int, purpose: str = "unit") -> int:
    """The 64-bit seed of a unit's random numbers: BLAKE2b of seed, batch and unit.

    Whoever computes the unit draws the same numbers.
    """
    content = struct.pack("<QQQ", seed % 2**64, batch, unit)
    digest = hashlib.blake2b(content, digest_size=8, person=purpose.encode())
    return int.from_bytes(digest.digest(), "little")


def seed_python(seed: int) -> None:
    """Seeds the generators of `random` and of numpy that a process shares."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def layout_hash(*parts: object) -> int:
    """A 63-bit number of what all workers of a run must have in common."""
    text = json.dumps(parts, separators=(",", ":"), default=str)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _versions_number(versions: str) -> int:
    # Small enough that its sum over a batch is exact, and tells of a difference after a decode
    # with real weights.
    digest = hashlib.blake2b(versions.encode(), digest_size=2).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Where:
    """How the coordinator is found, and what arrays a gradient has."""

    arrays: Sequence[Tuple[int, str]]
    layout: int
    dtype: str
    versions: str
    address: Optional[str] = None
    token: Optional[str] = None
    keys: Union[str, "os.PathLike[str]", None] = None
    worker: Optional[int] = None
    patience: float = 30.0
    scheme: Optional[str] = None
    frozen: Optional[int] = None
    start: Optional[int] = None

    @property
    def alone(self) -> bool:
        """Whether nobody says where a coordinator is."""
        return self.address is None and not os.environ.get("CODEDGRAD_ADDRESS")

    @property
    def on_this_host(self) -> bool:
        """Whether the coordinator is called by a loopback address, and so are the others."""
        host = (self.address or os.environ.get("CODEDGRAD_ADDRESS", "")).rpartition(":")[0]
        host = host.strip("[]")
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def connect(self, settings: Settings) -> "_native.Worker":
        """Joins the run of the arguments or the environment, or begins one of this process."""
        arrays = [(count, name) for count, name in self.arrays]
        facts: Dict[str, Any] = {
            "units": settings.units,
            "unit_samples": settings.unit_samples,
            "micro_steps": settings.micro_steps,
            "steps": settings.steps,
            "dtype": self.dtype,
            "layout": self.layout,
            "frozen": self.frozen,
            "start": self.start,
        }
        if not sum(count for count, _ in arrays):
            raise ValueError("nothing is trained: no array has a number that takes a gradient")
        if self.alone:
            self._check_alone()
            return _native.Worker.alone(arrays, facts, settings.first)
        keys = None if self.keys is None else os.fspath(self.keys)
        try:
            native = _native.Worker.join(
                arrays,
                facts,
                settings.first,
                self.address,
                self.token,
                keys,
                self.worker,
                self.patience,
            )
        except _native.Replaced as error:
            raise Replaced(str(error)) from None
        except _native.Refused as error:
            raise _refusal(error) from None
        found = _scheme(native)
        if self.scheme is not None and found not in ("", self.scheme):
            native.close()
            raise ValueError(f"scheme: {self.scheme} here, {found} in the run")
        _take_back_final()
        return native

    def _check_alone(self) -> None:
        """Raises if somebody who would train alone was told to join a run."""
        told = {
            "token": self.token,
            "keys": self.keys,
            "worker": self.worker,
            "scheme": self.scheme,
        }
        names = [f"{name}=" for name, value in told.items() if value is not None]
        variables = ("TOKEN", "TOKEN_FILE", "KEYS", "WORKER")
        names += [
            f"CODEDGRAD_{name}" for name in variables if os.environ.get(f"CODEDGRAD_{name}")
        ]
        if names:
            raise ValueError(
                f"{', '.join(names)} without an address: say address=\"host:port\" or set "
                "CODEDGRAD_ADDRESS, or this process would train alone"
            )


def _scheme(native: "_native.Worker") -> str:
    try:
        job = json.loads(native.job)
    except ValueError:
        return ""
    return str(job.get("scheme", "")) if isinstance(job, dict) else ""


def _scalar(place: int, value: Any) -> float:
    """A number that a unit reports: also a tensor of one, whose graph is not needed for it."""
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        found = repr(value) if shape is None else f"of the shape {tuple(shape)}"
        raise TypeError(
            f"scalar {place} of report() is {found}: it must be one number, such as loss.item()"
        ) from None


class Totals(Tuple[float, ...]):
    """What units have reported, summed over the whole batch: a tuple of numbers."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        try:
            return super().__getitem__(place)
        except IndexError:
            raise IndexError(f"totals[{place}]: {self._why()}") from None

    def _why(self) -> str:
        if len(self) == 0:
            return (
                "there are none. Units report them by micro.report(loss.item()) in the inner loop, "
                "and a step that was left out (step.applied is false) has none"
            )
        count = "one scalar" if len(self) == 1 else f"{len(self)} scalars"
        return f"units report {count}, micro.report(loss.item(), ..)"


class Micro:
    """A unit of a batch to compute: one micro-batch."""

    batch: int
    """Which batch it is of: the step, where `micro_steps` is 1."""
    unit: int
    """Which unit of the batch, from 0."""
    step: int
    """Which step the batch is a part of."""
    samples: range
    """Its samples, as numbers within the batch."""
    coefficient: float
    """What its gradient is multiplied with when it is taken, an entry of the code."""

    def __init__(self, run: "Run", batch: int, step: int, part: Tuple[int, int, int, float]):
        unit, start, end, coefficient = part
        self.batch = batch
        self.unit = unit
        self.step = step
        self.samples = range(start, end)
        self.coefficient = coefficient
        self._run = run
        self._scalars: Optional[Tuple[float, ...]] = None
        self._nothing = False

    def report(self, *scalars: Any) -> None:
        """Scalars of this unit, such as its loss and its number of tokens.

        `Step.totals` is their sum over the whole batch, each unit counted once, whoever computed
        it. Every unit of a run reports equally many. With `reduction="tokens"` the second one is
        the number of tokens.

        One that is not finite makes its sum NaN for this step, on all replicas alike, and nothing
        else: whether the step is applied is decided by the gradient. Raises ValueError for a
        number of tokens that is not finite, by which gradients would be divided.
        """
        values = tuple(_scalar(place, scalar) for place, scalar in enumerate(scalars))
        if self._run._settings.reduction == "tokens" and len(values) > 1:
            if not math.isfinite(values[1]):
                raise ValueError(
                    f"unit {self.unit} of batch {self.batch} reports {values[1]} tokens: a number "
                    'of tokens is finite, since with reduction="tokens" the gradient is divided '
                    "by it"
                )
        self._scalars = values

    def nothing(self) -> None:
        """Says that this unit has no loss, and so no gradient, on purpose: zeros are sent."""
        self._nothing = True

    @property
    def seed(self) -> int:
        """A 64-bit number that depends on the run's seed, the batch and the unit alone."""
        return unit_seed(self._run._settings.seed or 0, self.batch, self.unit, "generator")

    def __repr__(self) -> str:
        return f"Micro(batch={self.batch}, unit={self.unit}, coefficient={self.coefficient})"


class Step:
    """A step of the run; iterate over it to get the micro-batches this worker is to compute.

    There may be none (the step is decided already) or several tasks' worth. When the iteration
    ends, the gradient of the whole batch is there, the same bytes on every worker.
    """

    index: int
    """Which step it is; settled when the inner loop is over."""
    applied: bool
    """Whether there is a gradient: false if the step was refused, left out by taking over a state,
    or the run has ended."""
    skipped: Optional[List[Tuple[int, int]]]
    """If the step was refused: the units that nobody had a finite gradient of, as half-open
    ranges."""
    resynced: bool
    """Whether this replica takes over another one's state after the body: it was too far behind."""
    totals: Totals
    """Sums over the whole batch of what `Micro.report` was told: NaN where it was not finite for
    some unit, and for a refused step."""

    def __init__(self, run: "Run", event: Tuple[Any, ...]):
        self.index = event[1]
        self.applied = False
        self.skipped = None
        self.resynced = False
        self.totals = Totals()
        self._run = run
        self._event = event
        self._begun = False
        self._over = False
        self._before = run._fingerprint()
        # What is loaded when the body is over, and whether the run goes on then.
        self._state: Optional[Sequence[bytes]] = None
        self._last = False

    @property
    def gradients(self) -> List[Any]:
        """The gradient of the whole batch, as the run's arrays are: one array per parameter, None
        for one that no unit had a gradient of, and for all where the step was not applied.

        The arrays are written again in the next step: copy what is kept.
        """
        return list(self._run._shown_gradients())

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise RuntimeError("the micro-batches of a step can be iterated over only once")
        self._begun = True
        if self._run._fingerprint() != self._before:
            raise RuntimeError(
                "what is in state= has changed between `for step in run:` and `for micro in step:`: "
                "a worker that takes over this one's state would change it twice. Do it at the end "
                "of the body"
            )
        return _native.Loop(self._micros(), self._run._units_left)

    def _micros(self) -> Iterator[Any]:
        run, event = self._run, self._event
        while True:
            kind = event[0]
            if kind == "compute":
                self.index = event[1]
                yield from run._compute(event)
            elif kind == "provide":
                run._provide()
            elif kind == "apply":
                self.index = event[1]
                self.totals = run._show(self.index)
                self.applied = True
                break
            elif kind == "skip":
                self.index, self.skipped = event[1], list(event[2])
                self.totals = run._refused(self.index, self.skipped)
                break
            elif kind == "resync":
                self.index, self._state = event[1] - 1, event[2]
                self.resynced = True
                run._hide()
                break
            else:
                # The body runs without a gradient; what it counts is taken back.
                self._state, self._last = run._undo(), True
                run._hide()
                break
            event = run._receive()
        run._seed_step(self.index)
        self._over = True
        run._body_began = run._lap()

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


class Compute:
    """Micro-batches to compute; iterate over it to its end: a worker that gives up what is wanted
    has left the run."""

    def __init__(self, run: "Run", event: Tuple[Any, ...]):
        self.step: int = event[1]
        self._run = run
        self._event = event
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise RuntimeError("the micro-batches of a task can be iterated over only once")
        self._begun = True
        return _native.Loop(self._run._compute(self._event), self._run._units_left)


class Apply:
    """A decided step, whose gradient is there: apply it."""

    def __init__(self, run: "Run", step: int, totals: Totals):
        self.step = step
        self.totals = totals
        self._run = run

    @property
    def gradients(self) -> List[Any]:
        """As `Step.gradients`."""
        return list(self._run._shown_gradients())


class Skip:
    """A step that no worker may apply: count it."""

    def __init__(self, step: int, units: List[Tuple[int, int]]):
        self.step = step
        self.units = units


class Resync:
    """This replica takes over another one's state, with the next event or by `load`."""

    def __init__(self, run: "Run", next_step: int, state: Sequence[bytes]):
        self.next_step = next_step
        self._run = run
        self._state: Optional[Sequence[bytes]] = state

    def load(self) -> None:
        """Loads the state now."""
        if self._state is not None:
            state, self._state = self._state, None
            self._run._load_state(state, self.next_step)


class Provide:
    """Another worker needs this one's state: it is handed over with the next event, or by
    `reply`."""

    def __init__(self, run: "Run"):
        self._run = run
        self._done = False

    def reply(self) -> None:
        """Hands the state over now."""
        if not self._done:
            self._done = True
            self._run._provide()


Event = Union[Compute, Apply, Skip, Resync, Provide]


class Run:
    """A worker's part in a run: iterate over it for its steps, or over `events()`.

    `worker` is this worker's number and `workers` how many there are, `scheme` the scheme's text
    and `first` the first step that was not applied when it joined; `saver` is true on the one that
    logs and saves.

    A loop that ends by `break`, and a process that ends with status 0, leave the run for good. One
    that ends by an exception counts as lost: what it had is computed by others, or waits for its
    return. Used in a `with` statement the run is left at the end.
    """

    worker: int
    """This worker's number, from 0."""
    workers: int
    """How many workers the run has."""
    first: int
    """The first step that was not applied when it joined."""
    scheme: str
    """The scheme's text, if the coordinator says it."""

    def __init__(self, where: Where, settings: Settings):
        self._settings = settings
        self._arrays = len(where.arrays)
        self._versions = where.versions
        self._version = _versions_number(where.versions)
        self._native = where.connect(settings)
        self.worker = self._native.worker
        self.workers = self._native.workers
        self.first = self._native.next_step
        self.scheme = _scheme(self._native) or "uncoded"
        self._step: Optional[Step] = None
        # The unit that is being computed.
        self._unit: Optional[Micro] = None
        self._started = False
        self._over = False
        self._left = False
        # What is said of it when this process was told to end.
        self._farewell: Optional[str] = None
        self._scalars: Optional[int] = None
        self._body_began = 0.0
        self._took_part = False
        self._finishes = False
        self._warned = False
        self._warned_of_scalars = False
        self._counts = {"units": 0, "abandoned": 0, "applied": 0, "skipped": 0, "resyncs": 0}
        self._seconds = {"compute": 0.0, "wait": 0.0, "take": 0.0, "give": 0.0, "apply": 0.0}
        # Nobody goes on without a worker that is alone: SIGTERM just ends its process.
        if not where.alone:
            _signals.watch(self)

    # What depends on the arrays.

    def _make_micro(self, batch: int, step: int, part: Tuple[int, int, int, float]) -> Micro:
        return Micro(self, batch, step, part)

    def _prepare(self, micro: Micro) -> None:
        """Before a unit is computed."""
        raise NotImplementedError

    def _collect(self, micro: Micro) -> List[Any]:
        """The unit's gradient, one array or None for every array of the layout; all None if it has
        none at all."""
        raise NotImplementedError

    def _scale(self) -> float:
        """What gradients must be divided by when they are taken."""
        return 1.0

    def _fingerprint(self) -> object:
        """What must not change between a step's beginning and its micro-batches."""
        return None

    def _undo(self) -> Sequence[bytes]:
        """The replica, to be loaded again after a body that must not count; empty if it cannot be
        had."""
        return self._save()

    def _targets(self, there: List[bool]) -> List[Any]:
        """Where the decoded gradient goes, one array or None for every array of the layout."""
        raise NotImplementedError

    def _hide(self) -> None:
        """There is no gradient."""
        raise NotImplementedError

    def _shown_gradients(self) -> Sequence[Any]:
        """The decoded gradient, one array or None for every array of the layout."""
        raise NotImplementedError

    def _save(self) -> List[bytes]:
        """The replica."""
        raise NotImplementedError

    def _load(self, state: Sequence[bytes]) -> None:
        """Takes over a replica; raises ValueError if it does not fit."""
        raise NotImplementedError

    def _digest(self) -> int:
        """A digest of the parameters."""
        raise NotImplementedError

    def _seed(self, seed: int) -> None:
        """Seeds the random numbers that the user draws."""
        if self._settings.seed_all:
            seed_python(seed)

    # What does not.

    @property
    def over(self) -> bool:
        """Whether the run has ended, for everybody or for this worker."""
        return self._over or self._left

    @property
    def complete(self) -> bool:
        """Whether all steps of the run are applied here."""
        return self._native.next_step >= self._settings.steps

    @property
    def saver(self) -> bool:
        """Whether this worker is the one that saves and logs: the live one of the lowest number.

        Where it is lost, the next one is told with the next step.
        """
        saver = self._native.saver
        return self.worker == (0 if saver is None else saver)

    def finish(self) -> None:
        """Ends the run for everybody after the step that is open: early stopping.

        In the body of a step that one is decided, and the next one is open or decided by now: it is
        applied too. This worker goes on iterating until it is told that the run is over. If it leaves
        instead (`break`) and the others cannot do that next step without it, the run ends before.
        """
        self._finishes = True
        self._native.finish()

    def close(self) -> None:
        """Leaves the run for good: what was begun others do, and nobody waits for this worker. Can
        be called twice."""
        self._part("its part in the run was closed", True)

    def _part(self, reason: str, for_good: bool, unit: Optional[Micro] = None) -> None:
        """Leaves the run, if it goes on, with a last word to its coordinator."""
        if not self.over:
            self._left = True
            failed = None
            if unit is not None:
                samples = unit.samples
                failed = (unit.batch, unit.unit, samples.start, samples.stop)
            self._native.leave(reason, for_good, failed)
        self._release()
        _signals.unwatch(self)

    def _release(self) -> None:
        """Gives back what the run has taken of the user's objects."""

    def _fail(self, error: BaseException) -> None:
        """Leaves the run for an exception, which ends what the user does with it."""
        if isinstance(error, SystemExit) and not error.code:
            self._part("its process ends with status 0", True)
            return
        # A generator around the loop is closed by whatever ends the one around it.
        hidden = isinstance(error, GeneratorExit)
        lines = traceback.format_exception_only(type(error), error)
        reason = "its loop was left within a generator" if hidden else lines[-1].strip()
        # Nothing is wrong with a unit at which somebody presses Ctrl-C.
        unit = None if isinstance(error, KeyboardInterrupt) else self._unit
        self._part(reason, False, unit)

    def _steps_left(self, error: Optional[BaseException]) -> None:
        """A loop over the run has ended before the run: by an exception, or by `break`."""
        if error is None:
            self._part("its loop over the run was left", True)
        else:
            self._fail(error)

    def _units_left(self, error: Optional[BaseException]) -> None:
        """A loop over micro-batches has ended before they were done."""
        if error is not None:
            self._fail(error)
        # After `break` the end of the body says what is wrong with that.
        self._unit = None

    def _leave(self) -> Left:
        """Leaves the run for SIGTERM; gives back what the process ends by.

        The handler of the signal calls it wherever the main thread is: also where a subclass is
        not whole yet, or where something is being printed.
        """
        self._farewell = f"worker {self.worker} leaves the run: it was told to end (SIGTERM)"
        self._left = True
        self._native.leave("it was told to end (SIGTERM)", True)
        with contextlib.suppress(OSError):
            os.write(2, f"codedgrad: {self._farewell}\n".encode())
        return Left(self._farewell)

    def _check_left(self) -> None:
        """Raises `Left` again where somebody has caught it, and ends other threads."""
        if self._farewell is None:
            return
        if threading.current_thread() is threading.main_thread():
            raise Left(self._farewell)
        # By this one alone, by none of its subclasses, a thread ends without a traceback.
        raise SystemExit(0)

    def traffic(self) -> Tuple[int, int]:
        """Bytes sent and received so far."""
        return self._native.traffic()

    def digest(self) -> int:
        """The digest of this replica's parameters, equal on all workers after equal steps."""
        return self._digest()

    def report(self) -> Dict[str, Any]:
        """What this worker did: units computed and given up, steps applied and skipped, resyncs,
        and its seconds by phase (computing units, waiting, taking and giving gradients, applying
        them)."""
        return {**self._counts, "seconds": dict(self._seconds)}

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: object, error: Optional[BaseException], *_: object) -> None:
        if error is not None:
            self._fail(error)
        self.close()

    def __iter__(self) -> Iterator[Any]:
        self._start()
        return _native.Loop(self._steps(), self._steps_left)

    def _start(self) -> None:
        if self._started:
            raise RuntimeError("a run can be iterated over only once: join again for another")
        self._started = True

    def _steps(self) -> Generator[Step, None, None]:
        try:
            while True:
                event = self._receive()
                kind = event[0]
                if kind == "over":
                    return
                if kind == "provide":
                    self._provide()
                elif kind == "resync":
                    self._load_state(event[2], event[1])
                else:
                    step = self._step = Step(self, event)
                    self._body_began = self._lap()
                    yield step
                    self._seconds["apply"] += self._lap() - self._body_began
                    self._check_left()
                    if self._left:
                        return
                    self._settle(step)
                    if step._last:
                        return
        finally:
            self._step = None
            _signals.unwatch(self)

    def _lap(self) -> float:
        return time.perf_counter()

    def _settle(self, step: Step) -> None:
        """What is said of a step when its body is over."""
        if not step._over:
            if step._begun:
                raise RuntimeError(
                    f"step {step.index} was left before its micro-batches were done: do not "
                    "`break` out of `for micro in step:`"
                )
            raise RuntimeError(
                f"step {step.index} was not iterated over: its body begins with "
                "`for micro in step:`"
            )
        if step._state is None:
            self._applied(step.index)
        elif step._last:
            if step._state:
                self._load(step._state)
        else:
            self._load_state(step._state, step.index + 1)
        # Memory of a state, and the gradient's claim on its buffers.
        step._state = None

    def events(self) -> Iterator[Any]:
        """The run as events, for loops that cannot be turned inside out.

        `Compute` is iterated over for micro-batches; with `Apply` the gradient is there; `Skip`
        counts a step that nobody applies; `Resync` and `Provide` load and hand over the replica.
        An event is settled when the next one is asked for.
        """
        self._start()
        return _native.Loop(self._events(), self._steps_left)

    def _events(self) -> Iterator[Event]:
        try:
            while True:
                event = self._receive()
                kind = event[0]
                if kind == "over":
                    return
                if kind == "compute":
                    yield Compute(self, event)
                elif kind in ("apply", "skip"):
                    # A step without micro-batches: what optimizers and scalers look at.
                    step = self._step = Step(self, event)
                    for _ in step:
                        raise AssertionError("the step is decided")
                    if step.skipped is None:
                        yield Apply(self, step.index, step.totals)
                    else:
                        yield Skip(step.index, step.skipped)
                    self._seconds["apply"] += self._lap() - self._body_began
                    self._check_left()
                    if self._left:
                        return
                    self._step = None
                    self._applied(step.index)
                elif kind == "resync":
                    self._hide()
                    resync = Resync(self, event[1], event[2])
                    yield resync
                    resync.load()
                else:
                    provide = Provide(self)
                    yield provide
                    provide.reply()
        finally:
            _signals.unwatch(self)

    def _receive(self) -> Tuple[Any, ...]:
        """The next event."""
        self._check_left()
        began = self._lap()
        try:
            event = self._native.next()
        except _native.Replaced as error:
            self._left = True
            raise Replaced(str(error)) from None
        except _native.Refused as error:
            self._left = True
            raise _refusal(error) from None
        except ConnectionError:
            self._check_left()
            raise
        self._seconds["wait"] += self._lap() - began
        assert event is not None, "it is waited for ever"
        if event[0] == "over":
            self._over = True
            self._check_end()
        self._took_part = True
        return event

    def _check_end(self) -> None:
        """Says so if the run is over before its last step."""
        done, steps = self._native.next_step, self._settings.steps
        if done >= steps or self._finishes:
            return
        if not self._took_part:
            over = RunOver()
            print(f"codedgrad: {over}", file=sys.stderr)
            raise over
        why = self._native.why_over or "its coordinator has ended it"
        warnings.warn(
            f"the run is over with {done} of {steps} steps: {why}",
            RuntimeWarning,
            stacklevel=5,
        )

    def _compute(self, event: Tuple[Any, ...]) -> Iterator[Any]:
        """The micro-batches of a task, which is handed in at the end."""
        _, step, batch = event
        native, settings, seconds = self._native, self._settings, self._seconds
        tail = [0.0] * (_BEFORE + self._arrays)
        totals: List[float] = []
        units = 0
        began = self._lap()
        while True:
            part = native.part()
            if part is None:
                break
            micro = self._unit = self._make_micro(batch, step, part)
            if settings.seed is not None:
                self._seed(unit_seed(settings.seed, batch, micro.unit))
            self._prepare(micro)
            yield micro
            self._check_left()
            ended = self._lap()
            seconds["compute"] += ended - began
            arrays = self._collect(micro)
            coefficient = micro.coefficient
            native.take(arrays, coefficient / self._scale())
            tail[_ONES] += coefficient
            tail[_VERSIONS] += coefficient * self._version
            for place, array in enumerate(arrays, _BEFORE):
                if array is not None:
                    tail[place] += coefficient
            self._add(totals, micro)
            self._unit = None
            units += 1
            began = self._lap()
            seconds["take"] += began - ended
        wanted = native.submit(tail + totals)
        self._counts["units" if wanted else "abandoned"] += units

    def _add(self, totals: List[float], micro: Micro) -> None:
        """Adds a unit's scalars to those of its task."""
        scalars = micro._scalars or ()
        if self._scalars is None:
            self._scalars = len(scalars)
        if len(scalars) != self._scalars:
            raise ValueError(
                f"unit {micro.unit} of batch {micro.batch} reports {len(scalars)} scalars, where "
                f"those before reported {self._scalars}: every unit reports equally many"
            )
        if self._settings.reduction == "tokens" and len(scalars) < 2:
            raise ValueError(
                f"unit {micro.unit} of batch {micro.batch} does not say how many tokens it has: "
                'with reduction="tokens" write micro.report(loss, tokens)'
            )
        if not totals:
            totals.extend([0.0] * len(scalars))
        for place, scalar in enumerate(scalars):
            totals[place] += micro.coefficient * scalar

    def _show(self, step: int) -> Totals:
        """Puts the decoded gradient where the user finds it; gives back the totals."""
        began = self._lap()
        tail = self._native.tail()
        counts, totals = tail[_BEFORE : _BEFORE + self._arrays], tail[_BEFORE + self._arrays :]
        self._compare_versions(tail)
        # A count is a whole number but for the rounding of decode weights.
        targets = self._targets([count > 0.5 for count in counts])
        self._native.give(targets, self._factor(totals))
        self._counts["applied"] += 1
        self._seconds["give"] += self._lap() - began
        if self._scalars is None:
            self._scalars = len(totals)
        self._warn_of_scalars(step, totals)
        return Totals(totals)

    def _warn_of_scalars(self, step: int, totals: List[float]) -> None:
        """Says so once if a sum of scalars is not finite."""
        places = [place for place, total in enumerate(totals) if not math.isfinite(total)]
        if not places or self._warned_of_scalars:
            return
        self._warned_of_scalars = True
        warnings.warn(
            f"scalar {places[0]} that some unit of step {step} reports is not finite, so that "
            f"totals[{places[0]}] is nan; the gradient is finite, and is applied. Further ones are "
            "not told",
            RuntimeWarning,
            stacklevel=4,
        )

    def _factor(self, totals: List[float]) -> float:
        settings = self._settings
        if settings.reduction == "mean":
            return 1.0 / (settings.units * settings.micro_steps)
        if settings.reduction == "tokens":
            return 1.0 / totals[1] if totals[1] else 0.0
        return 1.0

    def _compare_versions(self, tail: List[float]) -> None:
        ones = tail[_ONES]
        if self._warned or ones < 0.5:
            return
        # Decode weights are real numbers: equal ones need not give a whole number back.
        if abs(tail[_VERSIONS] / ones - self._version) < 1e-3 + 1e-6 * self._version:
            return
        self._warned = True
        warnings.warn(
            f"some worker of this run has other versions than this one ({self._versions}): their "
            "gradients may differ in the last bits",
            RuntimeWarning,
            stacklevel=4,
        )

    def _seed_step(self, step: int) -> None:
        # What the body draws is drawn by every replica alike.
        if self._settings.seed is not None:
            self._seed(unit_seed(self._settings.seed, step, 0, "step"))

    def _verified(self, next_step: int) -> bool:
        verify = self._settings.verify
        return verify > 0 and next_step > 0 and next_step % verify == 0

    def _applied(self, step: int) -> None:
        self._native.applied(self._digest() if self._verified(step + 1) else None)

    def _provide(self) -> None:
        self._native.provide(self._save())

    def _refused(self, step: int, units: List[Tuple[int, int]]) -> Totals:
        """A step that no worker applies; gives back totals that say so."""
        self._hide()
        self._counts["skipped"] += 1
        if self._counts["skipped"] == 1:
            shown = ", ".join(f"{start}..{end - 1}" for start, end in units)
            warnings.warn(
                f"step {step} was refused: no worker had a finite gradient of units {shown}. "
                "Further ones are counted in report()",
                RuntimeWarning,
                stacklevel=4,
            )
        return Totals((math.nan,) * (self._scalars or 0))

    def _load_state(self, state: Sequence[bytes], next_step: int) -> None:
        before = self._undo()
        try:
            self._load(state)
        except Exception as error:  # whatever a library says of a state that does not fit
            if before:
                self._load(before)
            warnings.warn(
                f"the state of another worker does not fit: {str(error).splitlines()[0]}",
                RuntimeWarning,
                stacklevel=3,
            )
            self._native.refuse(str(error))
            return
        self._counts["resyncs"] += 1
        self._native.taken([self._digest()] if self._verified(next_step) else [])
