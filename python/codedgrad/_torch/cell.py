"""A worker of several processes, its ranks, each with the whole model: a *cell*.

The first rank alone is connected to the run. Each rank has a `CellWorker` in place of the native
worker, and all of them make the same calls in the same order. Before anything comes of a call the
ranks agree, in one collective (`_agree`): each says which call it is at, and the first one what it
was told by the run. So all take every branch alike. Where one has something else to say, that it
has raised an exception, leaves the loop, or was told to end, all hear of it here, and none waits
in a collective for a rank that does not come.

```text
the call      said by each rank                     said by the first
next          that the run is to be finished        the event, none while there is none yet
parts                                               the units, of which each computes its samples
wanted                                              whether the next one is still waited for
collect       which parameters have a gradient      -> summed over the mesh
submit        what the task's units report          whether it is still wanted
show                                                that it has it -> spread over the mesh
applied       its digest
taken/refuse  its digest, or what does not fit
leave         why
```
"""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

import torch
from torch import nn

from .. import _native
from .._core.exits import Left, Replaced, blameless, say_final
from .._core.joining import Settings, Where
from .._core.parting import How, say_short
from .._core.scalars import head_of
from .._core.signals import Order
from .._core.units import Micro
from .arrays import TorchArrays
from .host import OnHost, Transfer, plain
from .ranks import Ranks

# How long the first rank waits for an event before the ranks look whether one was told to end.
_LOOK_SECONDS = 0.2
# How long a rank that has raised an exception waits for the others, to tell them.
_FAREWELL_SECONDS = 20.0
# So many numbers are summed over the mesh at once.
_BUCKET = 1 << 24
# No worker's number.
_NOBODY = -1

# Which unit could not be computed: batch, unit, and its samples.
_Failed = Optional[Tuple[int, int, int, int]]


@dataclass(frozen=True)
class _Said:
    """What a rank says when the ranks agree."""

    #: At which call it is.
    at: str
    told_to_end: Optional[Order]
    what: Any = None
    #: What that call has raised here: a class and its text.
    error: Optional[Tuple[Any, str]] = None


class CellWorker:
    """What a rank has in place of the native worker."""

    def __init__(self, ranks: Ranks, settings: Settings):
        self.ranks = ranks
        self.worker = self.workers = self.next_step = 0
        self.job = ""
        self.why_over: Optional[str] = None
        self._settings = settings
        self._saver: Optional[int] = None
        self._native: Optional[_native.Worker] = None
        self._arrays = 0
        # Scalars decoded with the step that is open.
        self._tail: List[float] = []
        # What is to be said to the others, with the next call.
        self._finishes = False
        self._told_to_end: Optional[Order] = None
        self._notice = 0.0
        #: Whether this worker was told to end, as all its ranks know.
        self.leaving = False
        # Whether a collective was cut off: no other would find its counterpart.
        self._cut_off = False
        # By what this worker has left the run.
        self._gone: Optional[BaseException] = None

    @property
    def saver(self) -> Optional[int]:
        """The worker that saves: its first rank does."""
        return self._saver if self.ranks.rank == 0 else _NOBODY

    # Agreeing.

    def _agree(
        self,
        at: str,
        what: Any = None,
        ask: Optional[Callable[[], Any]] = None,
        seconds: Optional[float] = None,
    ) -> List[Any]:
        """What each rank says with a call that all make; the first one says what `ask` gives it.

        Raises, on all ranks, what that has raised on the first, and if one of them leaves.
        """
        if self._gone is not None:
            raise self._gone
        error: Optional[BaseException] = None
        if ask is not None and self.ranks.rank == 0:
            try:
                what = ask()
            except (Exception, Replaced) as raised:
                error = raised
        shown = None if error is None else (type(error), str(error))
        mine = _Said(at, self._told_to_end, what, shown)
        with self.together():
            found = self.ranks.gather(pickle.dumps(mine), seconds)
        said: List[_Said] = [pickle.loads(each) for each in found]
        if any(each.at == "leave" for each in said):
            self._leave_together(said)
            if at == "leave":
                return []
        else:
            for order in (Order.LEAVE, Order.END):
                told = [rank for rank, each in enumerate(said) if each.told_to_end is order]
                if told:
                    self._told(order, told[0])
        if self._gone is not None:
            raise self._gone
        if said[0].error is not None:
            if error is None:
                error = _made_again(*said[0].error)
            elif isinstance(error, (Replaced, _native.Replaced)):
                # Under torchrun the exit status is not the script's.
                say_final("refused", error)
            raise error
        for rank, each in enumerate(said):
            if each.at != said[0].at:
                raise RuntimeError(
                    f"rank {rank} of this worker is at another place than rank 0 ({each.at} and "
                    f"{said[0].at}): all ranks must go through the same loops, steps and units"
                )
        return [each.what for each in said]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Around collectives: after an exception in one no rank knows at which the others are."""
        self._cut_off = True
        try:
            yield
        except RuntimeError as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise _broken(f"a rank of this worker has died, or does not come: {first}") from error
        self._cut_off = False

    def _leave_together(self, said: Sequence[_Said]) -> None:
        """Some rank leaves, and so does the worker."""
        leaving = [(rank, each.what) for rank, each in enumerate(said) if each.at == "leave"]
        alike = len(leaving) == len(said)
        # An exception comes before anything else that ends a loop.
        worst = [each.value for each in How]
        leaving.sort(key=lambda entry: worst.index(entry[1][1]))
        rank, (reason, how, unit, place) = leaving[0]
        self._gone = _broken(f"rank {rank} of this worker has left the run: {reason}")
        if self._native is not None:
            by_itself = how in (How.TOLD.value, How.FOR_GOOD.value)
            shown = reason if alike and by_itself else f"rank {rank}: {reason}"
            if by_itself and not alike:
                how = How.FAILED.value
            self._native.leave(shown, how, unit, place)

    def _told(self, order: Order, rank: int) -> None:
        """A rank was told to leave, with all others, or to end."""
        if order is Order.LEAVE:
            # Each rank gets a signal of its own, sooner or later.
            if not self.leaving and self._native is not None:
                self._native.give_notice(self._notice)
                say_short(
                    f"worker {self.worker} leaves the run, within {self._notice:g} s: rank {rank} "
                    "was told to end (SIGTERM)"
                )
            self._told_to_end, self.leaving = None, True
            return
        why = f"rank {rank} was told to end (SIGTERM)"
        text = f"worker {self.worker} leaves the run: {why}"
        self._gone = Left(text)
        if self._native is not None:
            self._native.leave(why, How.TOLD.value)
            say_short(text)

    def told_to_end(self, order: Order) -> None:
        """This rank was told to leave, or to end: all do when they agree next."""
        self._told_to_end = order

    # Joining and leaving.

    def join(self, where: Where, connect: Callable[[], _native.Worker]) -> None:
        """All ranks join what the first one connects to."""
        facts = {
            "trains something else": (where.layout, list(where.arrays), where.dtype),
            "has other frozen parameters": where.frozen,
            "begins with other parameters or buffers": where.start,
            "has other settings": (self._settings_of_all(), where.called.address),
            "has other versions": where.versions,
        }
        self._notice = where.called.notice
        said = self._agree("join", facts)
        for rank, found in enumerate(said):
            for what, fact in found.items():
                if fact != said[0][what]:
                    raise ValueError(
                        f"rank {rank} of this worker {what} than rank 0: build the model alike in "
                        "each, from one seed or one checkpoint, and give join the same"
                    )
        self._arrays = len(where.arrays)

        def ask() -> Any:
            self._native = native = connect()
            return native.worker, native.workers, native.job, self._known(native)

        told = self._agree("joined", ask=ask)[0]
        self.worker, self.workers, self.job, known = told
        self._learn(known)

    def _settings_of_all(self) -> Any:
        return {**vars(self._settings), "rank": 0}

    @staticmethod
    def _known(native: _native.Worker) -> Any:
        return native.next_step, native.saver, native.why_over

    def _learn(self, known: Any) -> None:
        self.next_step, self._saver, self.why_over = known

    def leave(
        self, reason: str, how: str, unit: _Failed = None, place: Optional[str] = None
    ) -> None:
        """As the native worker's, for all ranks: the others hear of it in their next call."""
        if self._gone is not None:
            return
        if not self._cut_off:
            with contextlib.suppress(RuntimeError):
                self._agree("leave", (reason, how, unit, place), seconds=_FAREWELL_SECONDS)
                return
        self._gone = _broken(f"this worker has left the run: {reason}")
        if self._native is not None:
            # Nothing is wrong with a unit in which another rank dies.
            self._native.leave(reason, How.FAILED.value, None, place)

    def finish(self) -> None:
        """Ends the run for all workers: at once by the first rank, with the next event by others."""
        if self._native is not None:
            self._native.finish()
        else:
            self._finishes = True

    def close(self) -> None:
        """Hangs up."""
        if self._native is not None:
            self._native.close()

    def traffic(self) -> Tuple[int, int]:
        """Bytes sent and received by this rank."""
        return (0, 0) if self._native is None else self._native.traffic()

    # Events.

    def next(self, seconds: Optional[float] = None) -> Tuple[Any, ...]:
        """The next event."""
        state: List[bytes] = []

        def ask() -> Any:
            native = self._first()
            event = native.next(_LOOK_SECONDS)
            if event is None:
                return None
            if event[0] == "resync":
                state.extend(event[2])
                event = (event[0], event[1], [len(each) for each in state])
            tail = native.tail() if event[0] == "apply" else []
            return event, tail, self._known(native)

        told = None
        while told is None:
            finishes, self._finishes = self._finishes, False
            said = self._agree("the next event", finishes, ask)
            told = said[0]
            if self._native is not None and any(said[1:]):
                self._native.finish()
        event, self._tail, known = told
        self._learn(known)
        if event[0] == "resync":
            with self.together():
                return event[0], event[1], self.ranks.tell(event[2], state)
        return cast(Tuple[Any, ...], event)

    def _first(self) -> _native.Worker:
        assert self._native is not None, "the first rank has it"
        return self._native

    # Gradients.

    def parts(self) -> List[Tuple[int, int, int, float]]:
        """The task's units, with this rank's samples of each."""
        told = self._agree("the beginning of a task", ask=lambda: self._first().parts())[0]
        return [self._cut(*part) for part in told]

    def _cut(
        self, unit: int, start: int, end: int, coefficient: float
    ) -> Tuple[int, int, int, float]:
        each = (end - start) // self.ranks.size
        start += self.ranks.rank * each
        return unit, start, start + each, coefficient

    def wanted(self) -> bool:
        """Whether the task is still wanted."""
        return bool(self._agree("the next unit", ask=lambda: self._first().wanted())[0])

    def part(self) -> None:
        """The gradient that is taken next is the next unit's: the first rank takes all."""
        if self._native is not None:
            self._native.part()

    def in_parts(self) -> bool:
        """Nothing is handed over before the ranks' sum is there."""
        return False

    def collected(self, there: Sequence[bool]) -> List[bool]:
        """All have computed the unit; gives back which parameters have a gradient in some rank."""
        mine = sum(1 << place for place, has in enumerate(there) if has)
        found = 0
        for each in self._agree("the end of a unit", mine):
            found |= each
        return [bool(found >> place & 1) for place in range(len(there))]

    def take(self, arrays: List[Any], factor: float) -> None:
        """Of the first rank: takes the sum of all."""
        self._first().take(arrays, factor)

    def ready(self, first: int, arrays: List[Any], factor: float) -> None:
        """Of the first rank: takes a part of the sum of all."""
        self._first().ready(first, arrays, factor)

    def submit(self, tail: List[float]) -> bool:
        """Hands the task in, with what all ranks report of it."""
        head, mine = tail[: head_of(self._arrays)], tail[head_of(self._arrays) :]
        said = self._agree("the end of a task", mine)
        for rank, totals in enumerate(said):
            if len(totals) != len(said[0]):
                raise ValueError(
                    f"rank {rank} of this worker reports {len(totals)} scalars, and rank 0 "
                    f"{len(said[0])}: every rank reports equally many"
                )
        scale = self.scale()
        whole = head + [sum(each) * scale for each in zip(*said)]
        return bool(self._agree("a task's fate", ask=lambda: self._first().submit(whole))[0])

    def scale(self) -> float:
        """What sums over the ranks are multiplied with: means stay means."""
        return 1.0 / self.ranks.size if self._settings.reduction == "mean" else 1.0

    def tail(self) -> List[float]:
        """Scalars decoded with the step that is open."""
        return self._tail

    def give(self, first: int, arrays: List[Any], factor: float) -> None:
        """Of the first rank: what was decoded for some arrays."""
        self._first().give(first, arrays, factor)

    def given(self) -> None:
        """The first rank has what was decoded."""
        self._agree("the end of a step")

    # The replica.

    def applied(self, digest: Optional[int] = None) -> None:
        """The step is applied on all ranks, with the same parameters."""
        if digest is not None:
            self._compare(self._agree("the digest of a step", digest))
        if self._native is not None:
            self._native.applied(digest)

    @staticmethod
    def _compare(digests: Sequence[Any]) -> None:
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise _broken(
                    f"rank {rank} of this worker has other parameters than rank 0: the body of a "
                    "step must do the same on all ranks, and their devices must be alike"
                )

    def provide(self, state: List[bytes]) -> None:
        """Hands the first rank's replica over."""
        if self._native is not None:
            self._native.provide(state)

    def taken(self, digests: List[int]) -> None:
        """This rank has taken a state over."""
        self._settled(None, digests)

    def refuse(self, reason: str) -> None:
        """A state does not fit this rank."""
        self._settled(reason, [])

    def _settled(self, refused: Optional[str], digests: List[int]) -> None:
        said = self._agree("a state that is taken over", (refused, digests))
        refusing = [rank for rank, (reason, _) in enumerate(said) if reason is not None]
        if refusing and len(refusing) < len(said):
            rank = refusing[0]
            raise _broken(
                f"rank {rank} of this worker cannot take over the state that others of it have "
                f"taken: {said[rank][0]}"
            )
        if not refusing:
            self._compare([found for _, found in said])
        if self._native is not None and refusing:
            self._native.refuse(said[0][0])
        elif self._native is not None:
            self._native.taken(digests)


def _broken(text: str) -> BaseException:
    """This worker cannot go on, and its script is not to blame."""
    return blameless(RuntimeError(text))


def _made_again(kind: Any, text: str) -> BaseException:
    """An exception of another rank, which says what is to blame."""
    try:
        return blameless(cast(BaseException, kind(text)))
    except TypeError:
        return _broken(f"{kind.__name__}: {text}")


@dataclass(frozen=True)
class CellWhere(Where):
    """How a worker of several ranks joins."""

    cell: Optional[CellWorker] = None

    @property
    def told_to_end(self) -> Optional[Callable[[Order], None]]:
        assert self.cell is not None
        return self.cell.told_to_end

    def connect(self, settings: Settings) -> "_native.Worker":
        assert self.cell is not None
        self.cell.join(self, lambda: super(CellWhere, self).connect(settings))
        # It has those of its methods that a run calls.
        return cast("_native.Worker", self.cell)


class CellArrays(TorchArrays):
    """The parameters of a rank's replica."""

    def __init__(
        self,
        modules: List[nn.Module],
        optimizers: List[torch.optim.Optimizer],
        state: Mapping[str, Any],
        cell: CellWorker,
    ):
        self._cell = cell
        self._ranks = cell.ranks
        super().__init__(modules, optimizers, state, overlap=False)

    def _transfer_of(self) -> Transfer:
        # The others hand nothing over, and take no memory for it.
        first = self._ranks.rank == 0
        return super()._transfer_of() if first else OnHost(self._parameters)

    def collect(self, micro: Micro, native: _native.Worker) -> List[bool]:
        self._check_unit(micro)
        there = self._cell.collected([each.grad is not None for each in self._parameters])
        self._add_up(there)
        if self._ranks.rank == 0:
            self._hand_over(micro, native)
        return there

    def _add_up(self, there: Sequence[bool]) -> None:
        """The first rank's gradients become those of the whole unit; the others have none."""
        scale = self._cell.scale()
        for bucket in self._buckets(there):
            with self._cell.together():
                numbers = self._ranks.sum(torch.cat([_in_float32(each) for each in bucket]))
            if self._ranks.rank:
                continue
            numbers.mul_(scale)
            parts = torch.split(numbers, [each.numel() for each in bucket])
            for parameter, part in zip(bucket, parts):
                parameter.grad = part.view(parameter.shape).to(parameter.dtype)
        if self._ranks.rank:
            self.hide()

    def show(self, there: List[bool], factor: float, native: _native.Worker) -> None:
        if self._ranks.rank == 0:
            super().show(there, factor, native)
        self._cell.given()
        for bucket in self._buckets(there):
            sizes = [each.numel() for each in bucket]
            gradients = [each.grad for each in bucket if each.grad is not None]
            if self._ranks.rank == 0:
                numbers = torch.cat([each.reshape(-1) for each in gradients])
            else:
                like = bucket[0]
                numbers = torch.empty(sum(sizes), dtype=like.dtype, device=like.device)
            with self._cell.together():
                numbers = self._ranks.spread(numbers)
            if self._ranks.rank:
                for parameter, part in zip(bucket, torch.split(numbers, sizes)):
                    parameter.grad = part.view(parameter.shape)

    def _buckets(self, there: Sequence[bool]) -> Iterator[List[nn.Parameter]]:
        """The parameters that are `there`, in lists of one format."""
        bucket: List[nn.Parameter] = []
        room = _BUCKET
        for parameter, has in zip(self._parameters, there):
            if not has:
                continue
            if bucket and (parameter.dtype != bucket[0].dtype or parameter.numel() > room):
                yield bucket
                bucket, room = [], _BUCKET
            bucket.append(parameter)
            room -= parameter.numel()
        if bucket:
            yield bucket

    def save(self) -> List[bytes]:
        return super().save() if self._ranks.rank == 0 else []

    def undo(self) -> Sequence[bytes]:
        return super().save()


def _in_float32(parameter: nn.Parameter) -> torch.Tensor:
    """A gradient as it is summed; zeros where there is none."""
    if parameter.grad is None:
        return torch.zeros(parameter.numel(), device=parameter.device)
    return plain(parameter.grad, torch.float32).reshape(-1)
