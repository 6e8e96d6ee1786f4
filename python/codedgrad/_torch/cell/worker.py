"""What a rank of a worker has in place of the native worker, and how it joins."""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, cast

from ... import _native
from ..._core.joining import Settings, Where, layout_hash
from ..._core.scalars import head_of
from ..._core.signals import Order
from ..host import Contents, combined
from .agree import Agreement, Failed, broken
from .ranks import Ranks
from .vector import Vector

# How long the first rank waits for an event before the ranks look whether one was told to end.
_LOOK_SECONDS = 0.2
# No worker's number.
_NO_WORKER = -1


class CellWorker:
    """What a rank has in place of the native worker.

    Where a rank lacks a part of the model (`cut`) all ranks save, and each has a state of its own.
    """

    def __init__(self, ranks: Ranks, settings: Settings, vector: Vector, cut: bool):
        self.ranks = ranks
        self.vector = vector
        self.cut = cut
        self.agreement = Agreement(ranks)
        self.worker = self.workers = self.next_step = 0
        self.job = ""
        self.why_over: Optional[str] = None
        self._settings = settings
        self._saver: Optional[int] = None
        self.late_workers: Optional[int] = None
        self._trained = 0
        # Whether the task is wanted, as was asked last, and summed while its last unit is computed.
        self._wanted = self._in_parts = False
        # Scalars decoded with the step that is open.
        self._tail: List[float] = []
        # What is to be said to the others, with the next event.
        self._finishes = False

    @property
    def saver(self) -> Optional[int]:
        """The worker that saves: its first rank does, and where the model is cut all of them."""
        return self._saver if self.cut or self.ranks.rank == 0 else _NO_WORKER

    @property
    def _link(self) -> Optional[_native.Worker]:
        """The first rank's connection to the run."""
        return self.agreement.native

    @property
    def leaving(self) -> bool:
        """Whether this worker was told to end, as all its ranks know."""
        return self.agreement.leaving

    def _agree(
        self, at: str, what: Any = None, ask: Optional[Callable[[], Any]] = None
    ) -> List[Any]:
        return self.agreement.agree(at, what, ask)

    # Joining and leaving.

    def join(self, where: Where, connect: Callable[..., _native.Worker]) -> None:
        """All ranks join what the first one connects to, with the digests of all of them."""
        facts: Dict[str, Any] = {
            "trains something else": (where.layout, where.trained, where.dtype),
            "has other frozen parameters": where.frozen,
            "begins with other parameters or buffers": where.start,
            "has other settings": (self._settings_of_all(), where.called.address),
            "has other versions": where.versions,
        }
        self.agreement.notice = where.called.notice
        said = self._agree("join", facts)
        for what in facts:
            other = _unlike([each[what] for each in said])
            if other is not None:
                raise ValueError(
                    f"rank {other[1]} of this worker {what} than rank {other[0]}: build the model "
                    "alike in each, from one seed or one checkpoint, and give join the same"
                )
        self._trained = where.trained
        self.vector.share(self.ranks)
        whole = [
            None if said[0][what] is None else _combined([each[what] for each in said])
            for what in ("has other frozen parameters", "begins with other parameters or buffers")
        ]

        def ask() -> Any:
            native = connect(*whole)
            # Where a rank leaves already, the run hears of it.
            self.agreement.native, self.agreement.worker = native, native.worker
            return native.worker, native.workers, native.job, self._known(native)

        told = self._agree("joined", ask=ask)[0]
        self.worker, self.workers, self.job, known = told
        self._learn(known)

    def _settings_of_all(self) -> Any:
        return {**vars(self._settings), "part": 0}

    @staticmethod
    def _known(native: _native.Worker) -> Any:
        return native.next_step, native.saver, native.late_workers, native.why_over

    def _learn(self, known: Any) -> None:
        self.next_step, self._saver, self.late_workers, self.why_over = known

    def leave(
        self, reason: str, how: str, unit: Failed = None, place: Optional[str] = None
    ) -> None:
        """As the native worker's, for all ranks."""
        self.agreement.leave((reason, how, unit, place))

    def finish(self) -> None:
        """Ends the run for all workers: at once by the first rank, with the next event by others."""
        if self._link is not None:
            self._link.finish()
        else:
            self._finishes = True

    def close(self) -> None:
        """Hangs up."""
        if self._link is not None:
            self._link.close()

    def traffic(self) -> Tuple[int, int]:
        """Bytes sent and received by this rank."""
        return (0, 0) if self._link is None else self._link.traffic()

    # Events.

    def next(self, seconds: Optional[float] = None) -> Tuple[Any, ...]:
        """The next event."""
        def ask() -> Any:
            native = self._first()
            event = native.next(_LOOK_SECONDS)
            if event is None:
                return None
            tail = native.tail() if event[0] == "apply" else []
            return event, tail, self._known(native)

        told = None
        while told is None:
            finishes, self._finishes = self._finishes, False
            said = self._agree("the next event", finishes, ask)
            told = said[0]
            if self._link is not None and any(said[1:]):
                self._link.finish()
        event, self._tail, known = told
        self._learn(known)
        return cast(Tuple[Any, ...], event)

    def _first(self) -> _native.Worker:
        assert self._link is not None, "the first rank has it"
        return self._link

    # Gradients.

    def parts(self) -> List[Tuple[int, int, int, float]]:
        """The task's units, with this rank's samples of each."""

        def ask() -> Any:
            native = self._first()
            return native.parts(), native.wanted(), native.in_parts()

        told, self._wanted, self._in_parts = self._agree("the beginning of a task", ask=ask)[0]
        return [self._cut(*part) for part in told]

    def _cut(
        self, unit: int, start: int, end: int, coefficient: float
    ) -> Tuple[int, int, int, float]:
        each = (end - start) // self.ranks.parts
        start += self.ranks.part * each
        return unit, start, start + each, coefficient

    def wanted(self) -> bool:
        """Whether the task was still wanted when it began, or its last unit was computed."""
        return self._wanted

    def part(self, summed: bool = False) -> None:
        """The gradient that is taken next is the next unit's: the first rank takes all."""
        if self._link is not None:
            self._link.part(summed)

    def message(self) -> Optional[Tuple[int, int]]:
        """Of the first rank: where the worker's vector goes."""
        return self._first().message()

    def in_parts(self) -> bool:
        """Whether it is of use to say that parts of the task's last unit are written."""
        return self._in_parts

    def written(self, start: int, end: int) -> None:
        """Of the first rank: some arrays of all ranks are in the message."""
        self._first().written(start, end - start)

    def collected(self, there: Sequence[bool], again: bool = False) -> Tuple[List[bool], bool]:
        """All have computed the unit, and what is not summed by this package is in the shared
        memory; gives back which parameters have a gradient in some rank, and whether some rank has
        written `again` what it had said to be there."""
        mine = sum(1 << place for place, has in enumerate(there) if has)
        told = self._agree(
            "the end of a unit",
            (mine, again, False),
            lambda: (mine, again, self._first().wanted()),
        )
        self._wanted = told[0][2]
        found = 0
        for each, *_ in told:
            found |= each
        has = [bool(found >> place & 1) for place in range(len(there))]
        return has, any(each for _, each, _ in told)

    def handed_over(self) -> None:
        """What this package has summed over ranks is in the shared memory."""
        self._agree("the gradients of a task")

    def on_all(self, what: str, mine: bool) -> bool:
        """Whether something is so on all ranks."""
        return all(self._agree(what, mine))

    def of_all(self, what: str, mine: float) -> List[float]:
        """What each rank has of a sum."""
        return self._agree(what, mine)

    def submit(self, tail: List[float], finite: Optional[bool] = None) -> bool:
        """Hands the task in, with what all ranks report of it."""
        head, mine = tail[: head_of(self._trained)], tail[head_of(self._trained) :]
        told = self._agree("the end of a task", (mine, self.ranks.reports, finite))
        said = [totals for totals, reports, _ in told if reports]
        known = None if any(found is None for *_, found in told) else all(f for *_, f in told)
        for rank, totals in enumerate(said):
            if len(totals) != len(said[0]):
                raise ValueError(
                    f"rank {rank} of this worker reports {len(totals)} scalars, and rank 0 "
                    f"{len(said[0])}: every rank reports equally many"
                )
        scale = self.scale()
        whole = head + [sum(each) * scale for each in zip(*said)]
        return bool(self._agree("a task's fate", ask=lambda: self._first().submit(whole, known))[0])

    def scale(self) -> float:
        """What sums over the ranks are multiplied with: means stay means."""
        return 1.0 / self.ranks.parts if self._settings.reduction == "mean" else 1.0

    def tail(self) -> List[float]:
        """Scalars decoded with the step that is open."""
        return self._tail

    def decoded(self) -> _native.DecodedGradient:
        """Of the first rank: what was decoded."""
        return self._first().decoded()

    def given(self) -> None:
        """What was decoded is in the shared memory."""
        self._agree("the end of a step")

    # The replica.

    def applied(self, digests: Optional[Contents] = None) -> None:
        """The step is applied on all ranks, with the same parameters."""
        found = None if digests is None else self.digest_of(digests)
        if self._link is not None:
            self._link.applied(found)

    def digest_of(self, digests: Contents) -> int:
        """The worker's digest, of those of what each rank has: all ranks come here."""
        return _compared(self._agree("the digest of a step", digests))

    def provide(self, lengths: List[int], state: List[bytes]) -> None:
        """Hands the replica over: the first rank's, or what each rank has."""
        if not self.cut:
            if self._link is not None:
                self._link.provide(lengths, state)
            return
        lengths = self._agree("a state that is handed over", lengths[0])
        pieces = self._of_all(lengths, state.pop())
        try:
            with self.agreement.together():
                if self._link is not None:
                    self._link.provide(lengths, pieces)
                else:
                    deque(pieces, maxlen=0)
        finally:
            self.ranks.close()

    def _of_all(self, lengths: Sequence[int], mine: bytes) -> Iterator[bytes]:
        """What each rank has, piece by piece."""
        for rank, length in enumerate(lengths):
            yield from self.ranks.carry(rank, length, lambda start, size: mine[start : start + size])
            if rank == self.ranks.rank:
                mine = b""

    def state(self) -> List[bytes]:
        """What this rank takes over of another worker's state: what all do, or that of its rank."""
        lengths = self._agree("a state", ask=lambda: self._first().state_lengths())[0]
        if self.cut and len(lengths) != self.ranks.size:
            # All of them refuse it when it is loaded.
            return []
        found = [b""] * len(lengths)
        try:
            with self.agreement.together():
                # The first rank's comes when the others' is given back.
                for place in reversed(range(len(lengths))):
                    pieces = self.ranks.carry(0, lengths[place], self._reader(place))
                    if not self.cut or place == self.ranks.rank:
                        # Pieces that are joined would be there twice.
                        whole = io.BytesIO()
                        deque(map(whole.write, pieces), maxlen=0)
                        found[place] = whole.getvalue()
                    else:
                        deque(pieces, maxlen=0)
        finally:
            self.ranks.close()
        return [found[self.ranks.rank]] if self.cut else found

    def _reader(self, place: int) -> Callable[[int, int], bytes]:
        return lambda start, size: self._first().state_piece(place, start, size)

    def taken(self, digests: List[Contents]) -> None:
        """This rank has taken a state over."""
        self._settled(None, digests)

    def refuse(self, reason: str) -> None:
        """A state does not fit this rank."""
        self._settled(reason, [])

    def _settled(self, refused: Optional[str], digests: List[Contents]) -> None:
        said = self._agree("a state that is taken over", (refused, digests))
        refusing = [rank for rank, (reason, _) in enumerate(said) if reason is not None]
        if refusing and len(refusing) < len(said):
            rank = refusing[0]
            raise broken(
                f"rank {rank} of this worker cannot take over the state that others of it have "
                f"taken: {said[rank][0]}"
            )
        found = [_compared(each) for each in zip(*(of_rank for _, of_rank in said))]
        if self._link is not None and refusing:
            self._link.refuse(said[0][0])
        elif self._link is not None:
            self._link.taken(found)


def _compared(said: Sequence[Contents]) -> int:
    """The digest of all contents; raises RuntimeError where two ranks have not the same of one."""
    unlike = _unlike(said)
    if unlike is not None:
        raise broken(
            f"rank {unlike[1]} of this worker has other parameters than rank {unlike[0]}: the body "
            "of a step must do the same on all ranks, and their devices must be alike"
        )
    return _combined(said)


def _unlike(facts: Sequence[Any]) -> Optional[Tuple[int, int]]:
    """Two ranks that have not the same: of digests by contents, of a content that both have."""
    known: Dict[Any, Tuple[int, Any]] = {}
    for rank, found in enumerate(facts):
        for content, fact in (found if isinstance(found, Contents) else {None: found}).items():
            other, expected = known.setdefault(content, (rank, fact))
            if fact != expected:
                return other, rank
    return None


def _combined(said: Sequence[Contents]) -> int:
    """The worker's digest, of those of its ranks."""
    known: Dict[str, int] = {}
    for each in said:
        known.update(each)
    return combined(known)


@dataclass(frozen=True)
class CellWhere(Where):
    """How a worker of several ranks joins."""

    cell: Optional[CellWorker] = None

    @property
    def told_to_end(self) -> Optional[Callable[[Order], None]]:
        assert self.cell is not None
        return self.cell.agreement.told_to_end

    def connect(self, settings: Settings) -> "_native.Worker":
        cell = self.cell
        assert cell is not None

        def connect(frozen: Optional[int], start: Optional[int]) -> "_native.Worker":
            told: Dict[str, Any] = {"arrays": cell.vector.arrays, "frozen": frozen, "start": start}
            if cell.cut:
                told["layout"] = layout_hash(self.layout, cell.vector.arrays)
                told["ranks"] = cell.ranks.size
            return Where.connect(replace(self, **told), settings)

        cell.join(self, connect)
        # It has those of its methods that a run calls.
        return cast("_native.Worker", cell)
