"""A record of who is slow in a training job that is not ours.

A :class:`Recorder` writes a row for each step of this rank: five moments, and the seconds that went
into each part of it. A part is the rank's own, except for `waiting`:

    loading    from the end of the optimizer's last step to the model's call, and between passes
    forward    in the model; with FSDP2 in its innermost FSDP2 modules
    between    with FSDP2, in the model outside of those
    loss       from the model's outputs to the backward pass
    backward   from there to the last gradient
    optimizer  in the optimizer's step
    waiting    for the others, and from the last backward pass to the optimizer's step

Only differences are used: clocks of hosts need not agree. On an accelerator the moments are timing
events on the stream that computes, read a step later without waiting for them.
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import time
from functools import partial
from typing import Any, Callable, Optional, Union

import torch

from .passes import Passes, bound, is_shard
from .spans import HEADER, Clock, DeviceClock, HostClock

# What the launcher of a job tells each of its processes, the usual names first.
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
# Rows are written this often, in seconds.
_FLUSH_SECONDS = 10.0
# A job may end, or hang, in its first steps: their rows are written at once.
_FIRST_STEPS = 10


class Recorder:
    """Records the steps of a loop until it is closed or the process ends.

    Use :func:`codedgrad.record`. An error of its own never reaches the loop: it is one line on
    standard error, and the recorder is off.
    """

    def __init__(self, model: Any, optimizer: Any, folder: "Union[str, os.PathLike[str]]") -> None:
        self._file: Any = None
        self._passes: Optional[Passes] = None
        self._on = True
        self._process = os.getpid()
        self._step = 0
        try:
            self._begin(model, optimizer, os.fspath(folder))
        except Exception as error:
            self._give_up(error)

    def close(self) -> None:
        """Writes what is left and takes the hooks away. Nothing happens when it is called again."""
        if not self._on or os.getpid() != self._process:
            return
        try:
            self._write(wait=True)
        except Exception as error:
            self._give_up(error)
        self._end()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, model: Any, optimizer: Any, folder: str) -> None:
        trained = [each for each in model.parameters() if each.requires_grad]
        if not trained:
            raise ValueError("the model has no parameter that takes a gradient")
        device = trained[0].device
        self._clock: Clock
        self._clock = HostClock() if device.type == "cpu" else DeviceClock(device)
        self._passes = passes = Passes(self._clock, partial(_Hook, self), self._give_up)
        why = bound(model, trained)
        self._open(folder, device, any(map(is_shard, trained)))
        if why is not None:
            self._file.write(f"# bounded: the forward and backward pass: {why}\n")
        inner = getattr(optimizer, "optimizer", optimizer)
        if type(inner).__name__ == "ZeroRedundancyOptimizer":
            self._file.write("# bounded: the optimizer's step: it sends parameters\n")
        # What is not written yet would be written by a forked process too.
        self._file.flush()
        self._written = time.monotonic()
        passes.watch(model, trained, is_bounded=why is not None)
        passes.keep(inner.register_step_pre_hook, lambda *_: passes.stepping())
        passes.keep(inner.register_step_post_hook, lambda *_: self._stepped(passes))
        atexit.register(self.close)

    def _open(self, folder: str, device: torch.device, is_sharded: bool) -> None:
        os.makedirs(folder, exist_ok=True)
        rank = _rank()
        # A job that is started again counts its steps from 0: it must not mix with what was there.
        start = 0
        while True:
            name = f"rank-{rank}.csv" if start == 0 else f"rank-{rank}.start-{start}.csv"
            try:
                self._file = open(os.path.join(folder, name), "x", encoding="utf-8", newline="\n")
                break
            except FileExistsError:
                start += 1
        kind = "sharded" if is_sharded else "replicated"
        world = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", ""))
        self._file.write(
            f"# host {platform.node()}, rank {rank} of {world or '?'}, torch {torch.__version__}, "
            f"{device.type}, {kind}\n{HEADER}\n"
        )

    def _stepped(self, passes: Passes) -> None:
        """The optimizer has taken a step: that is a row."""
        passes.stepped(self._step)
        self._step += 1
        if passes.unseen is not None:
            self._file.write(f"# bounded: {passes.unseen}\n")
            passes.unseen = None
        now = time.monotonic()
        if self._step <= _FIRST_STEPS or now - self._written >= _FLUSH_SECONDS:
            self._write(wait=False)
            self._written = now

    def _write(self, wait: bool) -> None:
        self._clock.settle(wait)
        rows = self._clock.rows()
        if rows:
            self._file.write("".join(rows))
            self._file.flush()

    def _give_up(self, error: Exception) -> None:
        print(
            f"codedgrad.record is off, and the job goes on: {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )
        self._end()

    def _end(self) -> None:
        self._on = False
        if self._passes is not None:
            self._passes.end()
        atexit.unregister(self.close)
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                # What could not be written was said, or nothing was left to be.
                pass


class _Hook:
    """What torch calls; in a copy of the model, or where it is pickled whole, nothing."""

    def __init__(self, recorder: Recorder, then: Callable[..., Any]):
        self._recorder = recorder
        self._then = then

    def __call__(self, *args: Any) -> None:
        # A compiled region is to have neither a clock nor a reason to be compiled again.
        if torch.compiler.is_compiling() or not self._recorder._on:
            return
        try:
            self._then(*args)
        except Exception as error:
            self._recorder._give_up(error)

    def __reduce__(self) -> Any:
        # Of Python's own, so that who loads it needs no codedgrad: it takes what hooks are given,
        # and does nothing where no user listens.
        return partial, (sys.audit, "codedgrad.record")


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    for name in _RANKS:
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return 0


def record(model: Any, optimizer: Any, folder: "Union[str, os.PathLike[str]]") -> Recorder:
    """Records how long each step of this rank took, and of it what was waiting for others.

    For the job that you have: a loop under DistributedDataParallel or FSDP2, or of one process,
    under any launcher. It adds no collective and no thread. Every rank writes
    ``rank-K.csv`` into the folder, which all ranks may share; then ::

        codedgrad doctor steps              # who is slow, since when
        codedgrad plan --delays steps       # would coding pay

    ::

        model, optimizer = DDP(model), torch.optim.AdamW(model.parameters())
        codedgrad.record(model, optimizer, "steps")

    Of a rank counts its own time: a step without the spans in which it waits for others, after its
    last gradient under DistributedDataParallel, before and after each module under FSDP2. Where
    ranks wait for each other unseen, as under tensor and expert parallelism or FSDP1, the file says
    that the time of the passes is bounded, and only what lies outside of them is the rank's own.

    model, optimizer: what the loop calls; an optimizer that is wrapped in another's ``.optimizer``
        is found. Call it after ``fully_shard``.
    folder: made where it is missing. A job that is started again adds files of its own.

    Returns a :class:`Recorder` to be closed where the process goes on without the loop. An error of
    the recorder, such as a full disk, never ends the job: one line on standard error says it.
    """
    return Recorder(model, optimizer, folder)
