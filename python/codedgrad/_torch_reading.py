"""Reads the samples of units: in this process, or in others that read ahead."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import OrderedDict
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch

from ._joining import Settings
from ._seeds import seed_python

# The dataset's indices of a unit's samples, in as many lists as batches are made of them: of a
# batch of the run, a unit and its samples' numbers in that batch.
Order = Callable[[int, int, range], List[List[int]]]


class Reader:
    """Reads samples, in this process or in another."""

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[List[Any]], Any],
        begin: Optional[Callable[[int], None]] = None,
    ):
        self._dataset = dataset
        self._collate = collate
        #: What each process that reads ahead calls first, with its number.
        self.begin = begin

    def read(self, indices: List[List[int]], seed: Optional[int]) -> List[Any]:
        """The collated samples. What is drawn for them depends on the unit, not on the reader."""
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            seed_python(seed)
        return [self._collate([self._dataset[index] for index in each]) for each in indices]


# The reader of a process that reads ahead.
_READER: Optional[Reader] = None


def _begin_reading(reader: Reader, numbers: Any) -> None:
    global _READER
    _READER = reader
    # One that computes with several threads takes cores from the trainer.
    torch.set_num_threads(1)
    trainer = torch.multiprocessing.parent_process()
    if trainer is not None:
        # A killed trainer ends nobody; its readers would keep its connections open.
        threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()
    if reader.begin is not None:
        with numbers.get_lock():
            number = numbers.value
            numbers.value += 1
        reader.begin(number)


def _end_with(trainer: Any) -> None:
    trainer.join()
    os._exit(1)


def _read(indices: List[List[int]], seed: Optional[int]) -> List[Any]:
    assert _READER is not None
    return _READER.read(indices, seed)


class Reading:
    """The samples of units, of which those that are likely to come are read ahead."""

    def __init__(
        self,
        reader: Reader,
        order: Order,
        settings: Settings,
        *,
        num_workers: int,
        prefetch: int,
        context: Any = None,
    ):
        self._reader = reader
        self._order = order
        self._settings = settings
        self._prefetch = prefetch
        self._ahead: "OrderedDict[Tuple[int, int], Future[List[Any]]]" = OrderedDict()
        self._units: Dict[int, List[int]] = {}
        self._readers: Optional[ProcessPoolExecutor] = None
        if num_workers:
            context = torch.multiprocessing.get_context() if context is None else context
            self._readers = ProcessPoolExecutor(
                num_workers,
                context,
                initializer=_begin_reading,
                initargs=(reader, context.Value("i", 0)),
            )

    def read(self, batch: int, unit: int, samples: range) -> List[Any]:
        """A unit's samples, collated."""
        known = self._units.setdefault(batch, [])
        known.append(unit)
        for old in [old for old in self._units if old < batch - 1]:
            del self._units[old]
        if self._readers is None:
            return self._read_here(batch, unit, samples)
        future = self._ahead.pop((batch, unit), None)
        if future is None:
            future = self._submit(batch, unit, samples)
        for key, others in self._guesses(batch, unit, samples):
            self._ahead[key] = self._submit(*key, others)
        # What was guessed wrong is never asked for.
        for key in [key for key in self._ahead if key[0] < batch]:
            self._ahead.pop(key).cancel()
        return future.result()

    def _seed_of(self, batch: int, unit: int) -> Optional[int]:
        if self._settings.seed is None:
            return None
        return self._settings.unit_seed(batch, unit, "loader")

    def _submit(self, batch: int, unit: int, samples: range) -> "Future[List[Any]]":
        assert self._readers is not None
        indices = self._order(batch, unit, samples)
        return self._readers.submit(_read, indices, self._seed_of(batch, unit))

    def _read_here(self, batch: int, unit: int, samples: range) -> List[Any]:
        """Reads as another process would, and leaves the unit's own random numbers as they are."""
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        try:
            indices = self._order(batch, unit, samples)
            return self._reader.read(indices, self._seed_of(batch, unit))
        finally:
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])

    def _guesses(
        self, batch: int, unit: int, samples: range
    ) -> Iterator[Tuple[Tuple[int, int], range]]:
        """The units that come next if the next batch's are this one's, or the last one's."""
        before, now = self._units.get(batch - 1, []), self._units[batch]
        rest = before[before.index(unit) + 1 :] if unit in before else []
        following = itertools.chain(
            ((batch, other) for other in rest), ((batch + 1, other) for other in before or now)
        )
        for key in itertools.islice(following, self._prefetch):
            if key not in self._ahead:
                later = (key[1] - unit) * self._settings.unit_samples
                yield key, range(samples.start + later, samples.stop + later)

    def close(self) -> None:
        """Ends the processes that read ahead."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
