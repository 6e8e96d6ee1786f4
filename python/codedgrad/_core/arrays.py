"""What a run knows of the arrays that it trains.

An `Arrays` is the one place where parameters and gradients become memory of the host, and memory of
the host becomes gradients and parameters again: `codedgrad.loop` has it for numpy, `_torch.arrays`
for PyTorch. Whoever drives a run asks for nothing else of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, ContextManager, List, Mapping, Optional, Sequence, Type

from .. import _native
from .states import Progress
from .units import Micro


class Arrays(ABC):
    """A replica's arrays, in the order of the gradient's layout.

    Of a unit `prepare` and `collect` are called, in this order, and `settle` after the last one of
    a task; of a decided step `show` or `hide`, and `applied` after its body.
    """

    #: How a unit is shown to the user.
    micro: ClassVar[Type[Micro]] = Micro

    # Gradients.

    @abstractmethod
    def collect(self, micro: Micro, native: _native.Worker) -> List[bool]:
        """Hands over the gradient of the unit that was computed, times its coefficient: by
        `native.take`, unless `native.ready` has had it; now, or in its turn before `settle` comes
        back. Gives back which arrays have one."""

    @abstractmethod
    def show(self, there: List[bool], factor: float, native: _native.Worker) -> None:
        """Puts the decoded gradient times `factor` where the user finds it, by `native.give`, of
        the arrays that are `there`; the others have none."""

    @abstractmethod
    def hide(self) -> None:
        """There is no gradient."""

    @abstractmethod
    def gradients(self) -> List[Any]:
        """What is shown: an array, or None, for every array."""

    # The replica.

    @abstractmethod
    def save(self) -> List[bytes]:
        """All of it: parameters, and whatever else a worker that falls behind must take over."""

    @abstractmethod
    def load(self, state: Sequence[bytes]) -> None:
        """Takes over what `save` gave; raises an exception if it does not fit."""

    @abstractmethod
    def digest(self) -> int:
        """A digest of the worker's parameters, equal on equal replicas."""

    def digests(self) -> Any:
        """The same as `native.applied` takes it."""
        return self.digest()

    # What some libraries need beside.

    def joined(self, progress: Progress) -> None:
        """The run is joined. Keep a weak reference to `progress`, which holds these arrays."""

    def ended(self) -> None:
        """The loop over the run is over, or no run was joined: libraries do what they do without."""

    def release(self) -> None:
        """The run is left: gives back what was taken of the user's objects."""

    def seed(self, seed: int) -> None:
        """Seeds the random numbers that the user draws from the library."""

    def prepare(self, micro: Micro, native: _native.Worker) -> None:
        """Before a unit is computed: `native.part`, when the unit before is handed over."""
        native.part()

    def named(self, first: int, last: int) -> str:
        """What the user calls the arrays from `first` to `last`."""
        return f"array {first}" if first == last else f"arrays {first} to {last}"

    def settle(self) -> Optional[bool]:
        """Waits until all units that were collected are handed over. Gives back whether all numbers
        of the task's sum are finite, where that is known."""
        return None

    def report(self) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
        """What these arrays add to `Run.report`: of a device the ways of gradients, each with its
        "bytes" and "seconds"."""
        return {}

    def span(self, name: str) -> Optional[ContextManager[Any]]:
        """A span of this name that has begun in the library's profiler, if one looks on. It is asked
        several times a step: a microsecond where none does."""
        return None

    def applied(self) -> None:
        """A decided step's body is over, and was reported."""

    def undo(self) -> Sequence[bytes]:
        """The replica, to be loaded again after a body that must not count; empty if it cannot be
        had."""
        return self.save()

    def fingerprint(self) -> object:
        """What must not change between a step's beginning and its micro-batches."""
        return None
