"""The samples of units: which they are, and their reading.

`PreparedLoader` is what `prepare` gives back: a DataLoader's batches, dealt to units. `Loader` has
samples by their numbers: a unit has the same ones whichever worker reads them. They are read in this
process, or in others that read ahead.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections import OrderedDict
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from .._core.joining import Settings, whole
from .._core.loops import loop_of
from .._core.seeds import seed_python, unit_seed
from .._core.units import Micro
from .._core.warn import warn

if TYPE_CHECKING:
    # Their import is a process's that trains, and not one's that reads ahead.
    from .._core.run import Run
    from .iterations import Iterations

# How a DataLoader is written whose samples can be dealt.
_PLAIN = "DataLoader(dataset, batch_size={}, shuffle=True)"


class Samples:
    """Which samples a unit has: in epoch e process r of the `ranks` that compute unit u has those
    that `DistributedSampler(dataset, num_replicas=units * ranks, rank=u * ranks + r, drop_last=True)`
    with `set_epoch(e)` gives, in batches."""

    def __init__(
        self, loader: "DataLoader[Any]", units: int, accumulate: int, seed: int, ranks: int
    ):
        """Raises TypeError for a loader whose samples have no numbers, or an order of their own."""
        self.shuffle = _check(loader)
        assert loader.batch_size is not None
        self._length = len(loader.dataset)  # type: ignore[arg-type]
        self._units = units
        self._seed = seed
        #: Batches of a unit that one process has.
        self.accumulate = accumulate
        # Of a unit those that one process has, and all.
        self._share = loader.batch_size * accumulate
        self.unit_samples = self._share * ranks
        each = self._length // units
        #: Units that each has in an epoch: the epoch's steps.
        self.steps = each // self.unit_samples
        if not self.steps:
            raise ValueError(
                f"the dataset has {self._length} samples, a step {units * self.unit_samples} "
                f"({units} units of {self.unit_samples}): it must have one step at least"
            )
        left = each - self.steps * self.unit_samples
        if left and (accumulate > 1 or not loader.drop_last):
            what = "an incomplete last batch" if accumulate == 1 else "an incomplete last unit"
            warn(
                f"{what} of {left} samples is left out of each unit's epoch: all units have "
                f"{self.unit_samples}"
            )
        self._order: Tuple[int, List[int]] = (-1, [])

    def indices(self, batch: int, unit: int, samples: range) -> List[List[int]]:
        """The dataset's indices of some of a unit's samples, in as many lists as it has batches."""
        epoch, place = divmod(batch, self.steps)
        if self._order[0] != epoch:
            self._order = (epoch, self._drawn(epoch))
        # A process has those of its number among all processes of all units.
        processes = self.unit_samples // self._share
        process = (samples.start - unit * self.unit_samples) // self._share
        start = place * self._share
        dealt = self._order[1][unit * processes + process :: self._units * processes]
        own = dealt[start : start + len(samples)]
        size = len(own) // self.accumulate
        return [own[first : first + size] for first in range(0, len(own), size)]

    def of_process(self, unit: int) -> range:
        """The numbers of as many of a unit's samples as one process has."""
        first = unit * self.unit_samples
        return range(first, first + self._share)

    def _drawn(self, epoch: int) -> List[int]:
        if not self.shuffle:
            return list(range(self._length))
        generator = torch.Generator()
        generator.manual_seed(self._seed + epoch)
        return torch.randperm(self._length, generator=generator).tolist()


def _check(loader: "DataLoader[Any]") -> bool:
    """Whether samples are shuffled; raises TypeError for what cannot be dealt."""
    dataset, sampler = loader.dataset, loader.sampler
    plain = _PLAIN.format(loader.batch_size or "..")
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"the dataset is a {type(dataset).__name__}, an IterableDataset: any worker may compute "
            "any micro-batch, so samples need indices. Use a dataset with __getitem__ and __len__, "
            "or no loader: `for _ in model.run.iterations():`, and draw the samples inside the loop"
        )
    if type(loader).__module__.startswith("accelerate."):
        raise TypeError(
            "the loader is one of accelerator.prepare, which deals its samples itself: give that "
            "everything but the loader, and coded.prepare the DataLoader as it was"
        )
    if isinstance(sampler, DistributedSampler):
        raise TypeError(
            "the loader has a DistributedSampler, which gives a process its own samples: leave it "
            f"out, {plain}, and sampler.set_epoch too. Units get the same samples in the same order"
        )
    if type(loader.batch_sampler) is not BatchSampler or loader.batch_size is None:
        raise TypeError(
            f"the loader has a batch_sampler of its own, or no batch size: write {plain}, or no "
            "loader: `for _ in model.run.iterations():`"
        )
    if type(sampler) is SequentialSampler:
        return False
    if type(sampler) is not RandomSampler or sampler.replacement or sampler._num_samples:
        raise TypeError(
            f"the loader has a sampler of its own, {type(sampler).__name__}: who computes a unit is "
            f"not known before, so samples have numbers. Write {plain}, and let the dataset map "
            "numbers to samples"
        )
    return True


class PreparedLoader:
    """A loader over the iterations of a run: as long as one rank's under DistributedDataParallel.

    What it does not have itself, such as `dataset`, is the given DataLoader's.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        samples: Samples,
        iterations: Iterations,
        settings: Settings,
    ):
        self._loader = loader
        self._samples = samples
        self._iterations = iterations
        self._settings = settings
        self._epoch = settings.first // samples.steps
        # Whether it has been said that there are more loops than the run has epochs.
        self._told = False
        # How many batches the last loop was given.
        self._given = 0
        # What the iterations of a unit were given last.
        self._held: List[Any] = []
        # Before PyTorch 2.6 CUDA's.
        accelerator = getattr(torch, "accelerator", torch.cuda)
        self._pins = loader.pin_memory and accelerator.is_available()
        ahead = (loader.prefetch_factor or 2) * loader.num_workers
        self._reading = Reading(
            Reader(loader.dataset, loader.collate_fn, loader.worker_init_fn),
            samples.indices,
            settings,
            num_workers=loader.num_workers,
            prefetch=-(-ahead // samples.accumulate),
            context=loader.multiprocessing_context,
        )
        iterations.at_end.append(self._reading.close)

    def __len__(self) -> int:
        """Batches of one unit in an epoch: steps, times the batches of a unit."""
        return self._samples.steps * self._samples.accumulate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next loop goes through, where it is not the one after the last."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        iterations = self._iterations
        if self._given == 1 and iterations.is_open and not iterations.decides:
            # The script has looked at a batch, which comes again: no epoch has begun by that.
            self._epoch -= 1
        self._given = 0
        epoch, self._epoch = self._epoch, self._epoch + 1
        steps, all_steps = self._samples.steps, self._settings.steps
        if epoch * steps >= all_steps and not self._told:
            self._told = True
            warn(
                f"this is the loop of epoch {epoch}, counted from 0, and has no batches: the run has "
                f"{all_steps} steps, an epoch {steps}. The length of the whole run is said in "
                "prepare(epochs=..) or prepare(steps=..); with first=, loops begin at its epoch"
            )
        end = min((epoch + 1) * steps, all_steps)
        return loop_of(self._batches(end), iterations.loop_left)

    def _batches(self, end: int) -> Iterator[Any]:
        iterations = self._iterations
        iterations.resume(end)
        while iterations.begin():
            self._given += 1
            yield self._batch()

    def _batch(self) -> Any:
        iterations = self._iterations
        part = iterations.part
        if part == 0:
            micro = iterations.micro
            if micro is not None:
                self._held = self._read(micro.batch, micro.unit, micro.samples)
            elif iterations.blank or not self._held:
                # Of any unit that has a loss: nothing is computed with it.
                unit = iterations.blank % self._settings.units
                samples = self._samples.of_process(unit)
                self._held = self._read(iterations.index, unit, samples)
        return self._held[part]

    def _read(self, batch: int, unit: int, samples: range) -> List[Any]:
        found = self._reading.read(batch, unit, samples)
        if not self._pins:
            return found
        return [pytree.tree_map(_pinned, each) for each in found]


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if isinstance(leaf, torch.Tensor) else leaf


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
        # A killed trainer ends no reader; its readers would keep its connections open.
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
                f"{type(dataset).__name__} is an IterableDataset: any worker may compute any "
                "micro-batch, so samples need indices. Use a dataset with __getitem__, or write "
                "batch(micro) as a function of micro.batch and micro.unit (shard files by unit)"
            )
        settings = run.settings
        self._batch_samples = settings.units * settings.unit_samples
        self._batches = len(dataset) // self._batch_samples
        if not self._batches:
            raise ValueError(
                f"the dataset has {len(dataset)} samples, a batch {self._batch_samples} (units x "
                "unit_samples): it must have one batch at least"
            )
        self._samples = len(dataset)
        self._shuffle = shuffle
        self._seed = settings.seed
        self._order: Tuple[int, Optional[torch.Tensor]] = (-1, None)
        self._reading = Reading(
            Reader(dataset, collate_fn or torch.utils.data.default_collate),
            lambda batch, _, samples: [self.indices(batch, samples)],
            settings,
            num_workers=whole("num_workers", num_workers, 0),
            prefetch=whole("prefetch", prefetch, 0),
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
        return self._reading.read(micro.batch, micro.unit, micro.samples)[0]

    def close(self) -> None:
        """Ends the processes that read ahead."""
        self._reading.close()
