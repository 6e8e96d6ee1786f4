"""How the ranks of a worker agree before anything comes of a call, and how they leave together.

Drive it so: every rank calls `agree` with the same call at the same place of its loop, and goes on
with what all have said. A rank that ends calls `leave`; the others hear of it in their next
agreement. Where they are in a collective of the model, which ends only when that rank does, they
come to none: so a rank also leaves its last word in the mailbox, and the first rank tells it to the
coordinator when the collective fails, or while it waits for the device (`check`). After an exception
in a collective (`together`) no rank knows at which the others are, and nothing is agreed any more.
"""

from __future__ import annotations

import contextlib
import pickle
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple, cast

from ... import _native
from ..._core.exits import Left, Replaced, blameless, say_final
from ..._core.parting import How, say_short
from ..._core.signals import Order
from .ranks import Ranks

# How long a rank that leaves waits for the others, to leave with them; and one that has raised an
# exception, for which they may be in a collective of the model, which ends when this rank does.
_PARTING_SECONDS = 20.0
_FAREWELL_SECONDS = 1.5

# Which unit could not be computed: batch, unit, and its samples.
Failed = Optional[Tuple[int, int, int, int]]
# Why a rank leaves, how, at which unit, and where in its script.
_Word = Tuple[str, str, Failed, Optional[str]]


@dataclass(frozen=True)
class _Said:
    """What a rank says when the ranks agree."""

    #: At which call it is.
    at: str
    told_to_end: Optional[Order]
    what: Any = None
    #: What that call has raised here: a class and its text.
    error: Optional[Tuple[Any, str]] = None


class Agreement:
    """What the ranks of a worker say to each other, and what of it the coordinator hears."""

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        #: The first rank's connection to the run.
        self.native: Optional[_native.Worker] = None
        self.worker = 0
        self.notice = 0.0
        #: Whether this worker was told to end, as all its ranks know.
        self.leaving = False
        #: How many agreements there were.
        self.count = 0
        # What is to be said to the others, with the next call.
        self._told_to_end: Optional[Order] = None
        # Whether a collective was cut off: no other would find its counterpart.
        self._cut_off = False
        # By what this worker has left the run.
        self._gone: Optional[BaseException] = None

    def agree(
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
        shown = None if error is None else (type(error), _text_of(error))
        mine = _Said(at, self._told_to_end, what, shown)
        self.count += 1
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
            gone = self._gone_rank()
            if gone is not None:
                raise gone from error
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise broken(f"a rank of this worker has died, or does not come: {first}") from error
        self._cut_off = False

    def check(self) -> None:
        """For a rank that waits for its device, which may be in a collective: raises where another
        rank has died, or has said its last word."""
        gone = self._gone_rank()
        if gone is not None:
            self._cut_off = True
            raise gone

    def _gone_rank(self) -> Optional[BaseException]:
        """By which rank's end this worker ends, if one has ended."""
        mailbox = self.ranks.mailbox
        for rank, word in mailbox.heard():
            reason = pickle.loads(word)[0]
            return broken(f"rank {rank} of this worker has left the run: {reason}")
        dead = mailbox.dead()
        return None if dead is None else broken(f"rank {dead} of this worker has died")

    def told_to_end(self, order: Order) -> None:
        """This rank was told to leave, or to end: all do when they agree next."""
        self._told_to_end = order

    def _told(self, order: Order, rank: int) -> None:
        """A rank was told to leave, with all others, or to end."""
        if order is Order.LEAVE:
            # Each rank gets a signal of its own, sooner or later.
            if not self.leaving and self.native is not None:
                self.native.give_notice(self.notice)
                say_short(
                    f"worker {self.worker} leaves the run, within {self.notice:g} s: rank {rank} "
                    "was told to end (SIGTERM)"
                )
            self.leaving = True
            # It may be told to end at once by now.
            if self._told_to_end is Order.LEAVE:
                self._told_to_end = None
            return
        why = f"rank {rank} was told to end (SIGTERM)"
        text = f"worker {self.worker} leaves the run: {why}"
        self._gone = Left(text)
        if self.native is not None:
            self.native.leave(why, How.TOLD.value)
            say_short(text)

    # Leaving.

    def leave(self, word: _Word) -> None:
        """Leaves the run, for all ranks: the others hear of it in their next call."""
        if self._gone is not None:
            return
        # A rank that ends because another has ended is not the one to blame.
        mailbox = self.ranks.mailbox
        first = not self._cut_off and not mailbox.heard() and mailbox.dead() is None
        reason, how, unit, place = word
        raised = how in (How.FAILED.value, How.MISUSE.value)
        if first and raised:
            mailbox.say(_packed(word))
        if not self._cut_off:
            with contextlib.suppress(RuntimeError):
                seconds = _FAREWELL_SECONDS if raised else _PARTING_SECONDS
                self.agree("leave", (word, first), seconds=seconds)
                return
        if self._gone is not None:
            return
        self._gone = broken(f"this worker has left the run: {reason}")
        if self.native is None:
            return
        words = mailbox.heard()
        if words:
            self._tell(*words[0])
        else:
            # Nothing is wrong with a unit in which another rank dies.
            blamed = unit if first and mailbox.dead() is None else None
            self.native.leave(reason, how if first and raised else How.FAILED.value, blamed, place)

    def _leave_together(self, said: Sequence[_Said]) -> None:
        """Some rank leaves, and so does the worker."""
        leaving = [(rank, each.what) for rank, each in enumerate(said) if each.at == "leave"]
        alike = len(leaving) == len(said)
        # What comes of another rank's end is not the reason. An exception comes before anything else
        # that ends a loop.
        worst = [each.value for each in How]
        leaving.sort(key=lambda entry: (not entry[1][1], worst.index(entry[1][0][1])))
        rank, ((reason, how, unit, place), _) = leaving[0]
        self._gone = broken(f"rank {rank} of this worker has left the run: {reason}")
        if self.native is not None:
            by_itself = how in (How.TOLD.value, How.FOR_GOOD.value)
            shown = reason if alike and by_itself else f"rank {rank}: {reason}"
            if by_itself and not alike:
                how = How.FAILED.value
            self.native.leave(shown, how, unit, place)

    def _tell(self, rank: int, word: bytes) -> None:
        """The coordinator hears another rank's last word."""
        assert self.native is not None
        reason, how, unit, place = pickle.loads(word)
        self.native.leave(f"rank {rank}: {reason}", how, unit, place)
        say_short(f"worker {self.worker} leaves the run: rank {rank}: {reason}")


def _packed(word: _Word) -> bytes:
    """A last word, its reason cut where it is long."""
    reason, how, unit, place = word
    return pickle.dumps((_cut(reason, 2000), how, unit, None if place is None else _cut(place, 1000)))


def _cut(text: str, size: int) -> str:
    return text.encode(errors="replace")[:size].decode(errors="ignore")


def _text_of(error: BaseException) -> str:
    """What other ranks are told of an exception."""
    return error.args[0] if isinstance(error, _native.Changed) else str(error)


def broken(text: str) -> BaseException:
    """This worker cannot go on, and its script is not to blame."""
    return blameless(RuntimeError(text))


def _made_again(kind: Any, text: str) -> BaseException:
    """An exception of another rank, which says what is to blame."""
    try:
        return blameless(cast(BaseException, kind(text)))
    except TypeError:
        return broken(f"{kind.__name__}: {text}")
