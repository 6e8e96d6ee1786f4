"""Samples by their numbers: a unit has the same ones whichever worker reads them."""

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

from ._joining import whole
from ._run import Run
from ._seeds import seed_python, unit_seed
from ._units import Micro


class _Reader:
    """Reads the samples of a unit, in this process or in another."""

    def __init__(self, dataset: Any, collate: Callable[[List[Any]], Any]):
        self._dataset = dataset
        self._collate = collate

    def read(self, indices: List[int], seed: Optional[int]) -> Any:
        """The collated samples. What is drawn for them depends on the unit, not on the reader."""
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            seed_python(seed)
        return self._collate([self._dataset[index] for index in indices])


# The reader of a process that reads ahead.
_READER: Optional[_Reader] = None


def _begin_reading(reader: _Reader) -> None:
    global _READER
    _READER = reader
    # One that computes with several threads takes cores from the trainer.
    torch.set_num_threads(1)
    trainer = torch.multiprocessing.parent_process()
    if trainer is not None:
        # A killed trainer ends nobody; its readers would keep its connections open.
        threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()


def _end_with(trainer: Any) -> None:
    trainer.join()
    os._exit(1)


def _read(indices: List[int], seed: Optional[int]) -> Any:
    assert _READER is not None
    return _READER.read(indices, seed)


class Loader:
    """The samples of units of a dataset that is indexed: `batch = loader(micro)`.

    Which samples a unit has depends on the batch and the unit alone: `micro.samples` under a
    permutation that is drawn anew for each epoch, from the run's seed. An epoch is as many whole
    batches as the dataset has; what is left over is left out.

    dataset: has `__len__` and `__getitem__`. run: what `join` gave. collate_fn: makes a batch of a
    list of samples, as a DataLoader's. num_workers: processes that read ahead, 0 to read when asked
    for. prefetch: units to read ahead, by guessing that the next batch's units are this one's.

    Raises TypeError for an IterableDataset, ValueError for a dataset smaller than a batch.
    """

    def __init__(
        self,
        dataset: Any,
        run: Run,
        *,
        collate_fn: Optional[Callable[[List[Any]], Any]] = None,
        num_workers: int = 0,
        prefetch: int = 2,
        shuffle: bool = True,
    ):
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise TypeError(
                f"{type(dataset).__name__} is an IterableDataset: who computes a unit is not known "
                "before, so samples need numbers. Use a dataset with __getitem__, or write "
                "batch(micro) as a function of micro.batch and micro.unit (shard files by unit)"
            )
        self._settings = settings = run.settings
        self._batch_samples = settings.units * settings.unit_samples
        self._batches = len(dataset) // self._batch_samples
        if not self._batches:
            raise ValueError(
                f"the dataset has {len(dataset)} samples, a batch {self._batch_samples} (units x "
                "unit_samples): it must have one batch at least"
            )
        self._samples = len(dataset)
        self._reader = _Reader(dataset, collate_fn or torch.utils.data.default_collate)
        self._prefetch = whole("prefetch", prefetch, 0)
        self._shuffle = shuffle
        self._seed = settings.seed
        self._order: Tuple[int, Optional[torch.Tensor]] = (-1, None)
        self._ahead: "OrderedDict[Tuple[int, int], Future[Any]]" = OrderedDict()
        self._units: Dict[int, List[int]] = {}
        self._readers: Optional[ProcessPoolExecutor] = None
        if whole("num_workers", num_workers, 0):
            self._readers = ProcessPoolExecutor(
                num_workers,
                torch.multiprocessing.get_context(),
                initializer=_begin_reading,
                initargs=(self._reader,),
            )

    def indices(self, batch: int, samples: range) -> List[int]:
        """The dataset's indices of some samples of a batch."""
        epoch, place = divmod(batch, self._batches)
        start = place * self._batch_samples
        if not self._shuffle:
            return [start + sample for sample in samples]
        if self._order[0] != epoch:
            generator = torch.Generator()
            generator.manual_seed(unit_seed(self._seed or 0, epoch, 0, "epoch"))
            self._order = (epoch, torch.randperm(self._samples, generator=generator))
        order = self._order[1]
        assert order is not None
        return [int(index) for index in order[start + samples.start : start + samples.stop]]

    def __call__(self, micro: Micro) -> Any:
        """The unit's samples, collated."""
        batch, unit = micro.batch, micro.unit
        known = self._units.setdefault(batch, [])
        known.append(unit)
        for old in [old for old in self._units if old < batch - 1]:
            del self._units[old]
        if self._readers is None:
            return self._read_here(batch, unit, micro.samples)
        future = self._ahead.pop((batch, unit), None)
        if future is None:
            future = self._submit(batch, unit, micro.samples)
        for key, samples in self._guesses(batch, unit, micro.samples):
            self._ahead[key] = self._submit(*key, samples)
        # What was guessed wrong is never asked for.
        for key in [key for key in self._ahead if key[0] < batch]:
            self._ahead.pop(key).cancel()
        return future.result()

    def _seed_of(self, batch: int, unit: int) -> Optional[int]:
        return None if self._seed is None else self._settings.unit_seed(batch, unit, "loader")

    def _submit(self, batch: int, unit: int, samples: range) -> "Future[Any]":
        assert self._readers is not None
        indices, seed = self.indices(batch, samples), self._seed_of(batch, unit)
        return self._readers.submit(_read, indices, seed)

    def _read_here(self, batch: int, unit: int, samples: range) -> Any:
        """Reads as another process would, and leaves the unit's own random numbers as they are."""
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        try:
            return self._reader.read(self.indices(batch, samples), self._seed_of(batch, unit))
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
