"""Coded training with Hugging Face's Trainer: two lines of a script change.

```python
from codedgrad.transformers import CodedTrainer as Trainer    # - from transformers import Trainer
args = TrainingArguments(..., gradient_accumulation_steps=32)  # units of the whole job's batch
```

`per_device_train_batch_size` is a unit, and `gradient_accumulation_steps` says of how many units a
batch **of the whole job** is. Each worker is a plain process with this script (no torchrun); the
environment names the run, and without it the script trains alone, with the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import warnings
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from . import torch as coded
from ._core.joining import Called

__all__ = ["CodedTrainer"]

if "LOCAL_RANK" in os.environ:
    warnings.warn(
        "LOCAL_RANK is in the environment: Accelerate takes this process for one of a "
        "torch.distributed job. Start a coded run's workers without torchrun, or unset it",
        RuntimeWarning,
        stacklevel=2,
    )


def _check(args: TrainingArguments, dataset: Any) -> None:
    """Raises for what a coded run cannot do exactly; the text names the argument."""
    sampling = getattr(args, "train_sampling_strategy", "random")
    seed = args.data_seed
    grouped = getattr(args, "group_by_length", False) or sampling not in ("random", "sequential")
    updates_early = str(getattr(args.optim, "value", args.optim))
    found: Dict[str, Tuple[Any, str]] = {
        "LOCAL_RANK": (
            args.world_size > 1 or args.parallel_mode.value == "distributed",
            "this process is one of a torch.distributed job: workers are single processes. Start "
            "them by `codedgrad run -n N script.py`, without torchrun or mpirun, and unset LOCAL_RANK",
        ),
        "n_gpu": (args.n_gpu > 1, "DataParallel is not exact: use_cpu=True, or show one device"),
        "deepspeed": (args.deepspeed, "a worker holds the whole model"),
        "fsdp": (args.fsdp, "shard the model by fully_shard, and give it to prepare(mesh=, data=)"),
        "parallelism_config": (getattr(args, "parallelism_config", None), "see deepspeed, fsdp"),
        "fp16": (args.fp16, "its scaler would drop steps by itself: use bf16=True"),
        "auto_find_batch_size": (args.auto_find_batch_size, "a unit is as large on all workers"),
        "optim": (
            "lomo" in updates_early or updates_early.endswith("layerwise"),
            f"{updates_early} updates parameters within backward, before the gradient is whole",
        ),
        "train_sampling_strategy": (grouped, 'samples are drawn by number: "random", "sequential"'),
        "data_seed": (seed is not None and seed != args.seed, "seed says the order of samples too"),
        "include_num_input_tokens_seen": (
            args.include_num_input_tokens_seen not in (False, "no"),
            "inputs are seen by whoever computes the unit: leave it out",
        ),
    }
    for name, (wrong, why) in found.items():
        if wrong:
            raise ValueError(f"{name}: CodedTrainer cannot have it, {why}")
    if isinstance(dataset, IterableDataset):
        raise TypeError(
            f"train_dataset is a {type(dataset).__name__}, an IterableDataset: any worker may "
            "compute any micro-batch, so samples need indices. Use a dataset with __getitem__ and "
            "__len__, or codedgrad.torch.join with batch(micro), a function of batch and unit"
        )


class _Part(TrainerCallback):
    """Joins the run when training begins, before other callbacks; what goes with a replica."""

    def __init__(self, trainer: "CodedTrainer"):
        self.trainer = trainer
        self.stepped = False

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer._join()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.stepped = False

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # The Trainer takes an epoch without a step for the end of the data.
        if not self.stepped and not self.trainer._ended:
            control.should_training_stop = False

    def state_dict(self) -> Dict[str, Any]:
        trainer = self.trainer
        loss = trainer._losses
        return {
            "state": json.dumps(dataclasses.asdict(trainer.state)),
            "losses": trainer._owed if loss is None else float(loss),
            "total": float(trainer._total_loss_scalar),
            "logged": trainer._globalstep_last_logged,
        }

    def load_state_dict(self, found: Mapping[str, Any]) -> None:
        trainer = self.trainer
        own = ("is_local_process_zero", "is_world_process_zero")
        for name, value in json.loads(found["state"]).items():
            if name not in own:
                setattr(trainer.state, name, value)
        if trainer._losses is None:
            trainer._owed = found["losses"]
        else:
            trainer._losses.fill_(found["losses"])
        trainer._total_loss_scalar = found["total"]
        trainer._globalstep_last_logged = found["logged"]


class CodedTrainer(Trainer):
    """A `transformers.Trainer` that is a worker of a coded run while it trains.

    Arguments are the Trainer's, and `coded`: more of `codedgrad.torch.join`, such as `address`,
    `token` or `verify`. Clipping, callbacks, schedules, logs, evaluations and checkpoints are the
    Trainer's; evaluating, a worker is late, and others go on where the scheme lets them.

    The loss is the mean over all tokens (labels but -100) of the batch, whoever computed them, or
    over its samples where there is nothing called labels; the logs are the same on all workers.
    `run` is what `join` gave; its saver alone writes and prints (`should_save`,
    `is_world_process_zero`). `on_step_begin` comes when the gradient is there, and what a callback
    keeps of its own is not handed to workers that fall behind.

    Which samples a unit has depends on `seed`, batch and unit alone; what is left over of an epoch,
    less than a batch, is left out. Inputs are what `data_collator` makes of
    `per_device_train_batch_size` samples, and go to `compute_loss`, which can be overridden.

    Raises ValueError or TypeError that names the argument which a coded run cannot have.
    """

    def __init__(self, *args: Any, coded: Optional[Mapping[str, Any]] = None, **kwargs: Any):
        self._options = dict(coded or {})
        Called(self._options.get("address")).check_launcher()
        super().__init__(*args, **kwargs)
        if type(self).get_train_dataloader is not CodedTrainer.get_train_dataloader:
            raise TypeError(
                "get_train_dataloader is overridden: samples are read by batch and unit, not by a "
                "loader's position. Give train_dataset and data_collator"
            )
        _check(self.args, self.train_dataset)
        self.run: Any = None
        self._part = _Part(self)
        self.callback_handler.callbacks.insert(0, self._part)
        # What is left when training ends: the run first, then the processes that read for it.
        self._entered = contextlib.ExitStack()
        self._loader: Any = None
        self._events: Iterator[Any] = iter(())
        self._asked = 0
        self._epoch_steps = 1
        self._ended = False
        self._losses: Optional[torch.Tensor] = None
        self._step_loss = self._owed = 0.0

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: Any = None,
    ) -> Any:
        """Trains, and leaves the run: `Trainer.train`.

        Raises whatever `codedgrad.torch.join` does, when no coordinator answers or the run is another one.
        """
        if trial is not None:
            raise ValueError("trial: CodedTrainer cannot have it, a run is of one model")
        with contextlib.ExitStack() as self._entered:
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader as long as an epoch has units; it is not read from."""
        found = super().get_train_dataloader()
        unit, units = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        samples = len(found.dataset)  # type: ignore[arg-type]
        self._epoch_steps = samples // (unit * units)
        if not self._epoch_steps:
            raise ValueError(
                f"train_dataset has {samples} samples, a batch {unit * units} "
                "(per_device_train_batch_size x gradient_accumulation_steps): it must have one "
                "batch at least"
            )
        numbers = range(self._epoch_steps * unit * units)
        return DataLoader(found.dataset, unit, sampler=numbers, collate_fn=found.collate_fn)

    def _join(self) -> None:
        args = self.args
        data, model = self.callback_handler.train_dataloader, self.model
        assert data is not None and model is not None
        model.train()
        self._ended = False
        self._losses = getattr(self, "_tr_loss", None)
        self.run = coded.join(
            model,
            getattr(self.optimizer, "optimizer", self.optimizer),
            **{
                "units": args.gradient_accumulation_steps,
                "steps": self.state.max_steps,
                "first": self.state.global_step,
                "unit_samples": args.per_device_train_batch_size,
                "reduction": "tokens",
                "state": {"scheduler": self.lr_scheduler, "trainer": self._part},
                "seed": args.seed,
                "seed_all": True,
                **self._options,
            },
        )
        self._entered.callback(self._close_loader)
        self._entered.enter_context(self.run)
        self._asked = self.state.global_step
        self._events = self.run.events()
        self._loader = coded.Loader(
            data.dataset,
            self.run,
            collate_fn=data.collate_fn,
            num_workers=args.dataloader_num_workers,
            prefetch=args.dataloader_prefetch_factor or 2,
            shuffle=getattr(args, "train_sampling_strategy", "random") == "random",
        )
        self._follow()

    def _close_loader(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def _follow(self) -> None:
        """Lets this process be the one that saves and logs if it is."""
        saver = self.run.saver
        number = 0 if saver else max(self.run.worker, 1)
        # Of this the arguments' should_save and is_world_process_zero are made.
        here = self.args.distributed_state
        here.process_index = here.local_process_index = number
        state = self.state
        late = saver and not state.is_world_process_zero
        state.is_world_process_zero = state.is_local_process_zero = saver
        for callback in self.callback_handler.callbacks if late else ():
            if isinstance(callback, ProgressCallback) and callback.training_bar is None:
                callback.on_train_begin(  # type: ignore[no-untyped-call]
                    self.args, state, self.control
                )

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: Any
    ) -> Tuple[List[Any], Any]:
        """Takes part in a step of the run until its gradient is there; one empty input per unit.

        None where this worker has taken over a later state, and where the run is over: what the
        Trainer does with a gradient happens for decided steps alone.
        """
        step = self._asked
        self._asked += 1
        if self.state.global_step > step:
            return [], None
        self.model_wrapped.train()
        self.optimizer.train()  # type: ignore[union-attr]
        for event in self._events:
            if isinstance(event, coded.Compute):
                for micro in event:
                    self._compute(micro)
            elif isinstance(event, (coded.Apply, coded.Skip)):
                totals = event.totals if isinstance(event, coded.Apply) else (0.0, 0.0, 0.0)
                loss, tokens, flos = totals
                # Of a step that no worker applies there is no loss: the Trainer leaves it out.
                self._step_loss = loss / tokens if tokens else math.nan
                self.current_flos += int(flos)
                self.state.global_step = event.step
                self._part.stepped = True
                self._follow()
                return [{}] * num_batches, None
            elif isinstance(event, coded.Resync):
                event.load()
                if self.state.global_step > step:
                    return [], None
        warnings.warn(
            f"the run ended after {step} of {self.state.max_steps} steps: a worker stopped it, or "
            "its coordinator gave it up",
            RuntimeWarning,
            stacklevel=2,
        )
        self._ended = self.control.should_training_stop = True
        return [], None

    def _compute(self, micro: Any) -> None:
        inputs = self._loader(micro)
        tokens = self.count_tokens(inputs)
        if tokens is None:
            tokens = len(micro.samples)
        if not tokens:
            micro.report(0.0, 0, 0.0)
            micro.nothing()
            return
        flos = float(self.floating_point_ops(inputs))
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            count = torch.tensor(tokens, device=self.args.device)
            # The unit's mean, also of what a model adds to it; its sum is the mean's share.
            loss: Any = self.compute_loss(self.model_wrapped, inputs, num_items_in_batch=count)
            loss = loss * tokens
        self.accelerator.backward(loss)
        micro.report(float(loss.detach()), tokens, flos)

    def count_tokens(self, inputs: Mapping[str, Any]) -> Optional[int]:
        """How many tokens `compute_loss` gives the mean of, None to count samples.

        Labels but -100, without the first of each sequence where the model shifts them as the
        library's causal ones do. Override it for a loss of one's own.
        """
        labels = inputs.get("shift_labels")
        if labels is None:
            labels = inputs.get("labels")
            if isinstance(labels, torch.Tensor) and getattr(self, "_loss_shifts_labels", False):
                labels = labels[..., 1:]
        return int(labels.ne(-100).sum()) if isinstance(labels, torch.Tensor) else None

    def training_step(self, *_: Any, **__: Any) -> torch.Tensor:
        """The batch's loss, once for each step: its gradient is there already."""
        last = self.accelerator.sync_gradients
        return torch.tensor(self._step_loss if last else 0.0, device=self.args.device)

    def floating_point_ops(self, inputs: Dict[str, Any]) -> int:
        """The Trainer's estimate for a unit."""
        return super().floating_point_ops(inputs) if inputs else 0

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self._losses is None:
            # Before version 5 it is the loop's own, and not to be had before.
            tr_loss += self._owed
        self._losses, self._owed = tr_loss, 0.0
        self.state.epoch = self.state.global_step / self._epoch_steps
        super()._maybe_log_save_evaluate(tr_loss, *args, **kwargs)
        if self.control.should_epoch_stop:
            raise RuntimeError("should_epoch_stop: epochs are the run's, a callback cannot end one")
        if self.state.global_step >= self.state.max_steps:
            for _ in self._events:
                pass
            self._follow()
        elif self.control.should_training_stop and not self._ended:
            # All workers stop after the same step, which may be a later one.
            self.run.finish()
            self.control.should_training_stop = False

    def log(self, logs: Dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs, with `run.metrics()` beside a training loss: what callbacks show is this worker's.
        `state.log_history`, which workers hand over, stays the same on all of them."""
        if self.run is None or "loss" not in logs:
            super().log(logs, *args, **kwargs)
            return
        super().log({**logs, **self.run.metrics()}, *args, **kwargs)
        history = self.state.log_history
        history[-1] = {name: each for name, each in history[-1].items() if not name.startswith("coded/")}

    def _save_rng_state(self, output_dir: str) -> None:
        if self.args.should_save:
            super()._save_rng_state(output_dir)

    def _load_best_model(self) -> None:
        # Others may not see the checkpoint, or not all of it yet.
        if self.args.should_save:
            super()._load_best_model()
