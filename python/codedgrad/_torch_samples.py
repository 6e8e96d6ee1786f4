"""The loader that `prepare` gives back: a DataLoader's batches, dealt to units."""

from __future__ import annotations

from typing import Any, Iterator, List, Tuple

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler
from torch.utils.data import SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from ._joining import Settings
from ._loops import loop_of
from ._torch_passages import Passages
from ._torch_reading import Reader, Reading
from ._warn import warn

# How a DataLoader is written whose samples can be dealt.
_PLAIN = "DataLoader(dataset, batch_size={}, shuffle=True)"


class Samples:
    """Which samples a unit has: in epoch e unit u has those that `DistributedSampler(dataset,
    num_replicas=units, rank=u, drop_last=True)` with `set_epoch(e)` gives to rank u, in batches."""

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
        start = place * self.unit_samples + samples.start - unit * self.unit_samples
        own = self._order[1][unit :: self._units][start : start + len(samples)]
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
            f"the dataset is a {type(dataset).__name__}, an IterableDataset: who computes a unit is "
            "not known before, so samples need numbers. Use a dataset with __getitem__ and "
            "__len__, or no loader: `for _ in model.run.passages():`, and draw what the passage "
            "computes in it"
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
            "loader: `for _ in model.run.passages():`"
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
    """A loader over the passages of a run: as long as one rank's under DistributedDataParallel.

    What it does not have itself, such as `dataset`, is the given DataLoader's.
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        samples: Samples,
        passages: Passages,
        settings: Settings,
    ):
        self._loader = loader
        self._samples = samples
        self._passages = passages
        self._settings = settings
        self._epoch = settings.first // samples.steps
        # Whether it has been said that there are more loops than the run has epochs.
        self._told = False
        # How many batches the last loop was given.
        self._given = 0
        # What the passages of a unit were given last.
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
        passages.at_end.append(self._reading.close)

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
        passages = self._passages
        if self._given == 1 and passages.is_open and not passages.decides:
            # Somebody has looked at a batch, which comes again: no epoch has begun by that.
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
        return loop_of(self._batches(end), passages.loop_left)

    def _batches(self, end: int) -> Iterator[Any]:
        passages = self._passages
        passages.resume(end)
        while passages.begin():
            self._given += 1
            yield self._batch()

    def _batch(self) -> Any:
        passages = self._passages
        part = passages.part
        if part == 0:
            micro = passages.micro
            if micro is not None:
                self._held = self._read(micro.batch, micro.unit, micro.samples)
            elif passages.blank or not self._held:
                # Of any unit that has a loss: nothing is computed with it.
                unit = passages.blank % self._settings.units
                samples = self._samples.of_process(unit)
                self._held = self._read(passages.index, unit, samples)
        return self._held[part]

    def _read(self, batch: int, unit: int, samples: range) -> List[Any]:
        found = self._reading.read(batch, unit, samples)
        if not self._pins:
            return found
        return [pytree.tree_map(_pinned, each) for each in found]


def _pinned(leaf: Any) -> Any:
    return leaf.pin_memory() if isinstance(leaf, torch.Tensor) else leaf
