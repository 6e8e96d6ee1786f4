"""Samples by their numbers: a unit has the same ones whichever worker reads them."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch

from ._joining import whole
from ._run import Run
from ._seeds import unit_seed
from ._torch_reading import Reader, Reading
from ._units import Micro


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
