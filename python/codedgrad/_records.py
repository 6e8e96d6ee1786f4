"""What the tools answer: the objects of the command's JSON, with arrays where it has lists."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Optional, Tuple, Type, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_T = TypeVar("_T", bound="Record")


class Record:
    """Equal to another where all fields are, arrays by their elements."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, np.ndarray):
        return np.array_equal(mine, theirs, equal_nan=True)
    # A number that is none is so in both.
    return bool(mine == theirs or (mine != mine and theirs != theirs))


def _filled(kind: Type[_T], found: Mapping[str, Any], **made: Any) -> _T:
    """The record of these fields, those that were made already left as they are."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: made[name] if name in made else found.get(name) for name in names})


def _number(value: Optional[float]) -> float:
    """A number of JSON, which has no word for one that is none."""
    return math.nan if value is None else value


@dataclass(frozen=True, eq=False)
class RoundTime(Record):
    """Lengths of the rounds in which a worker had anything to do, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, eq=False)
class Simulation(Record):
    """What a scheme did over given delays; times in seconds of the virtual clock."""

    scheme: str
    workers: int
    jobs: int
    #: Rounds after its first within which a job is complete.
    delay: int
    #: Largest fraction of a batch that one worker touches in a round.
    load: float
    #: Batches computed by all workers per job; uncoded = 1.
    work: float
    #: How delays grew with the load: ``kind``, ``base_load`` and, where it is additive, ``slope``.
    growth: Dict[str, Any]
    #: By which rule rounds closed, and the deadline tolerance, where that rule has one.
    close: str
    mu: Optional[float]
    #: Which stragglers a round could close without: ``lookahead`` or ``model``, where the scheme has
    #: a model of them.
    accept: Optional[str]
    #: What it was run over, and the seed of what was drawn.
    delays: str
    seed: Optional[int]
    #: Of the program.
    version: str
    total_time: float
    time_per_job: float
    rounds: int
    round_time: RoundTime
    #: Rounds that were kept open past their deadline.
    wait_outs: int
    jobs_decoded: int
    #: Mean fraction of a batch in its gradient; below 1 gradients are biased.
    coverage: float
    #: When each job was complete, shape ``(jobs,)``; infinite for one that never was.
    job_finish_time: Floats
    #: Share of the answers that were later than the deadline.
    straggler_fraction: float
    #: Share of workers that had not finished their round's work at its close; of `defer` alone.
    deferred: Optional[float]
    #: Who did what in every round, if it was asked for.
    grid: Optional[str]

    @classmethod
    def _of(cls, found: Mapping[str, Any], grid: Optional[str]) -> Simulation:
        finish = [math.inf if time is None else time for time in found["job_finish_time"]]
        return _filled(
            cls,
            found,
            round_time=_filled(RoundTime, found["round_time"]),
            job_finish_time=np.array(finish, dtype=np.float64),
            grid=grid,
        )


@dataclass(frozen=True, eq=False)
class FailedSet(Record):
    """A set of stragglers that a code should bear and does not."""

    #: Workers, ascending.
    stragglers: Ints
    residual: float
    amplification: float
    error: float
    reason: str


@dataclass(frozen=True, eq=False)
class Verification(Record):
    """What trying the sets of stragglers has shown."""

    sets: int
    #: Whether those were all sets of at most as many stragglers as the code tolerates.
    exhaustive: bool
    worst_residual: float
    worst_amplification: float
    #: Largest normalised error, and its mean over the sets.
    worst_error: float
    mean_error: float
    #: How many did not decode within their gate.
    failed: int
    #: The first of those.
    failures: Tuple[FailedSet, ...]

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Verification:
        shown = ("worst_residual", "worst_amplification", "worst_error", "mean_error")
        worst = {name: _number(found[name]) for name in shown}
        names = ("residual", "amplification", "error")
        failures = tuple(
            _filled(
                FailedSet,
                failure,
                stragglers=np.array(failure["stragglers"], dtype=np.int64),
                **{name: _number(failure[name]) for name in names},
            )
            for failure in found["failures"]
        )
        return _filled(cls, found, failures=failures, **worst)


@dataclass(frozen=True, eq=False)
class Code(Record):
    """A code, and how it decodes what given workers sent."""

    scheme: str
    workers: int
    shares: int
    #: Fraction of the batch in each share, shape ``(shares,)``.
    share_weights: Floats
    #: Stragglers that are tolerated, whoever they are.
    stragglers: int
    #: Why that is so; None where it is only claimed.
    proof: Optional[str]
    #: Largest fraction of a batch that one worker touches.
    load: float
    #: B, shape ``(workers, shares)``: worker i sends the sum over j of B[i, j] times what share j
    #: gives.
    matrix: Floats
    #: Workers whose messages arrived, ascending.
    survivors: Ints
    decodable: bool
    #: What each worker's message is multiplied by, shape ``(workers,)``; 0 for stragglers.
    weights: Floats
    residual: float
    #: How rounding errors of messages grow; uncoded = 1.
    amplification: float
    #: Fraction of the batch in the decoded gradient.
    coverage: float
    #: Normalised decoding error, |a B - 1|^2 / k.
    error: float
    verified: Optional[Verification]

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Code:
        arrays = {
            name: np.array(found[name], dtype=np.float64) for name in ("share_weights", "weights")
        }
        verified = found.get("verified")
        return _filled(
            cls,
            found,
            matrix=np.array(found["matrix"], dtype=np.float64).reshape(-1, found["shares"]),
            survivors=np.array(found["survivors"], dtype=np.int64),
            **{name: _number(found[name]) for name in ("residual", "amplification", "error")},
            verified=None if verified is None else Verification._of(verified),
            **arrays,
        )


@dataclass(frozen=True, eq=False)
class Candidate(Record):
    """A scheme and what it would do; times in seconds."""

    scheme: str
    #: When its rounds close: ``all``, ``incremental`` or ``decodable``.
    close: str
    #: Deadline tolerance, where the close asks for one.
    mu: Optional[float]
    #: Rounds a job may be late.
    delay: int
    #: Largest fraction of a batch that one worker touches in a round.
    load: float
    #: Batches computed by all workers per job; uncoded = 1.
    work: float
    time_per_job: float
    #: Share of the uncoded time that it saves on this trace; negative where it costs time.
    gain: float
    #: Fraction of a batch in its gradient; below 1 it is biased.
    coverage: float
    #: Whether it gives the gradient of the whole batch.
    exact: bool
    #: Time per job if workers were slow independently, where there is a formula.
    closed_form: Optional[float]
    #: Why it is recommended or not.
    reason: str


@dataclass(frozen=True, eq=False)
class FrontPoint(Record):
    """An exact scheme that nothing beats in both work and time."""

    scheme: str
    close: str
    mu: Optional[float]
    delay: int
    work: float
    time_per_job: float
    exact: bool


@dataclass(frozen=True, eq=False)
class Cause(Record):
    """What makes rounds long and is not cured by coding."""

    #: ``dead-workers``, ``constantly-slow-workers``, ``slow-shares`` or ``slow-rounds``.
    kind: str
    #: Which workers, where it is some and not all.
    workers: Ints
    #: Share of the uncoded time that its cure would save.
    costs: float
    words: str


@dataclass(frozen=True, eq=False)
class GainInterval(Record):
    """Between what a gain lies, at 95 %, judged on rounds that had no part in choosing."""

    low: float
    high: float
    #: Blocks of rounds that judged it.
    blocks: int
    #: Rounds of a block.
    block: int


@dataclass(frozen=True, eq=False)
class Plan(Record):
    """What to do, and why; times in seconds."""

    workers: int
    jobs: int
    #: How times grew with the load: ``kind``, ``base_load`` and, where it is additive, ``slope``.
    growth: Dict[str, Any]
    #: Time per job without a code.
    baseline: float
    #: The scheme to take: ``uncoded`` where nothing surely gains.
    recommended: str
    #: Share of the uncoded time that choosing so saves, on the rounds that did not choose.
    gain: float
    #: Between what the gain of choosing so lies on traces like this one, at 95 %; none where
    #: no code is recommended, and where `why` says what the trace has too few of.
    interval: Optional[GainInterval]
    why: str
    #: The best of every family, and uncoded; the fastest first.
    candidates: Tuple[Candidate, ...]
    #: The least work first.
    front: Tuple[FrontPoint, ...]
    causes: Tuple[Cause, ...]
    notes: Tuple[str, ...]
    #: When rounds close: ``usual`` (see each candidate's `close` and `mu`) or ``paper``.
    rules: str
    accept: str
    #: What was planned on, and the seed of what was drawn.
    delays: str
    seed: Optional[int]
    #: Of the program.
    version: str

    @property
    def choice(self) -> Candidate:
        """The candidate that is recommended."""
        return next(found for found in self.candidates if found.scheme == self.recommended)

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> Plan:
        interval = found["interval"]
        return _filled(
            cls,
            found,
            interval=None if interval is None else _filled(GainInterval, interval),
            candidates=tuple(_filled(Candidate, one) for one in found["candidates"]),
            front=tuple(_filled(FrontPoint, one) for one in found["front"]),
            causes=tuple(
                _filled(Cause, one, workers=np.array(one["workers"], dtype=np.int64))
                for one in found["causes"]
            ),
            notes=tuple(found["notes"]),
        )


@dataclass(frozen=True, eq=False)
class OverShare(Record):
    """Who is late by more than a multiple of the round's median."""

    factor: float
    #: Share of the rounds in which a worker is.
    rounds: float
    #: Share of all answers that are.
    answers: float


@dataclass(frozen=True, eq=False)
class StragglerWindow(Record):
    """How well a trace keeps to the (B, W, lambda) straggler model."""

    burst: int
    window: int
    windows: int
    stragglers_mean: float
    #: The smallest lambda that 95 % of the windows keep to.
    lambda_95: int
    #: The smallest lambda that all windows keep to.
    lambda_all: int
    #: Share of the windows in which no worker's straggling spreads over more than B rounds.
    temporal_share: float


@dataclass(frozen=True, eq=False)
class SlowAnswers(Record):
    """Slow answers by one rule."""

    answers: int
    share: float
    per_round_mean: float
    per_round_least: int
    per_round_most: int
    workers_ever: int
    worst_worker: float
    #: How many runs of rounds in which a worker is slow there are, by their length.
    bursts: Dict[int, int]
    #: Probability that a slow worker is slow in the next round; none if no worker is slow before the
    #: last.
    stay: Optional[float]
    #: Probability that a worker that is not slow is so in the next round.
    enter: Optional[float]
    variance_over_mean: Optional[float]
    dispersion: Optional[float]
    windows: Tuple[StragglerWindow, ...]

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> SlowAnswers:
        return _filled(
            cls,
            found,
            bursts={int(length): count for length, count in found["bursts"].items()},
            windows=tuple(_filled(StragglerWindow, window) for window in found["windows"]),
        )


@dataclass(frozen=True, eq=False)
class TraceStats(Record):
    """What a trace comes to; times in `unit`."""

    delays: str
    #: ``seconds``, or ``step_times``: of uncoded steps, the computation included.
    unit: str
    rounds: int
    workers: int
    mean: float
    median: float
    fastest_mean: float
    round_median_mean: float
    slowest_mean: float
    variation_within_round: float
    over: Tuple[OverShare, ...]
    #: Share of the variance that is between workers' means.
    static_share: float
    #: What rounds would gain if work were shared out anew in each.
    bound_by_mean: float
    #: What rounds would gain if half of the workers were never waited for.
    bound_by_median: float
    #: Slow by 1.5 times the median.
    over_median: SlowAnswers
    #: Slow by twice the fastest.
    over_fastest: SlowAnswers
    #: Answers that were not received: they count as slow as the slowest of their round.
    not_received: int

    @classmethod
    def _of(cls, found: Mapping[str, Any]) -> TraceStats:
        return _filled(
            cls,
            found,
            over=tuple(_filled(OverShare, over) for over in found["over"]),
            over_median=SlowAnswers._of(found["over_median"]),
            over_fastest=SlowAnswers._of(found["over_fastest"]),
        )
