"""A record of who is slow in a training job that is not ours.

A :class:`Recorder` stamps five moments of every step of this rank, by its own clock:

    began     the optimizer's last step ended: what follows is loading
    forward   the model was called for the first time
    first     the first gradient was there
    last      the last gradient was there; from here on the rank waits for the others
    ended     the optimizer's step begins

Gradients are seen by hooks on parameters, which run before a gradient is accumulated, and so before
DistributedDataParallel's all-reduce of it is waited for. Only differences are used: clocks of hosts
need not agree. On an accelerator the stamps are timing events on the stream that computes, read a
step later without waiting for them.
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

import torch

# What the launcher of a job tells each of its processes, the usual names first.
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_STAMPS = ("began", "forward", "first", "last", "ended")
# Rows are written this often, in seconds.
_FLUSH_SECONDS = 10.0
# After the first backward pass a hook stays on the last parameter of every so many bytes:
# DistributedDataParallel sums gradients in buckets of this size.
_BUCKET_BYTES = 25 << 20
# Steps whose events the device may not have come to yet; beyond that it hangs, or never will.
_BEHIND = 1000


class Recorder:
    """Records the steps of a loop until it is closed or the process ends.

    Use :func:`codedgrad.record`. An error of its own never reaches the loop: it is one line on
    standard error, and the recorder is off.
    """

    def __init__(self, model: Any, optimizer: Any, folder: "Union[str, os.PathLike[str]]") -> None:
        self._handles: List[Any] = []
        self._gradients: List[Tuple[torch.nn.Parameter, Any]] = []
        self._order: Optional[List[torch.nn.Parameter]] = []
        self._file: Any = None
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
        self._clock: _Clock
        self._clock = _HostClock() if device.type == "cpu" else _DeviceClock(device)
        is_sharded = any(type(each).__name__ == "DTensor" for each in trained)
        self._open(folder, device, is_sharded)
        self._written = time.monotonic()
        self._hook(model.register_forward_pre_hook, lambda *_: self._clock.stamp_once("forward"))
        for each in trained:
            self._gradients.append((each, self._on_gradient(each, is_sharded)))
        inner = getattr(optimizer, "optimizer", optimizer)
        self._hook(inner.register_step_pre_hook, lambda *_: self._clock.stamp("ended"))
        self._hook(inner.register_step_post_hook, lambda *_: self._stepped())
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
        # Under FSDP a rank waits for others within its forward and backward pass too.
        kind = "sharded" if is_sharded else "replicated"
        world = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", ""))
        self._file.write(
            f"# host {platform.node()}, rank {rank} of {world or '?'}, torch {torch.__version__}, "
            f"{device.type}, {kind}\nstep,{','.join(_STAMPS)}\n"
        )
        # What is not written yet would be written by a forked process too.
        self._file.flush()

    def _hook(self, register: Callable[[Any], Any], then: Callable[..., Any]) -> Any:
        """Calls something where torch says so, as long as nothing has gone wrong here."""
        handle = register(_Hook(self, then))
        self._handles.append(handle)
        return handle

    def _on_gradient(self, parameter: torch.nn.Parameter, is_sharded: bool) -> Any:
        def seen(*_: Any) -> None:
            self._clock.stamp_once("first")
            self._clock.stamp("last")
            if self._order is not None:
                self._order.append(parameter)

        # FSDP2 sets the gradients of its shards itself, and calls these hooks alone.
        register = (
            parameter.register_post_accumulate_grad_hook if is_sharded else parameter.register_hook
        )
        return self._hook(register, seen)

    def _stepped(self) -> None:
        """The optimizer has taken a step: that is a row."""
        self._clock.close_step(self._step)
        self._step += 1
        self._clock.stamp("began")
        if self._order:
            self._thin_out()
        now = time.monotonic()
        if now - self._written >= _FLUSH_SECONDS:
            self._write(wait=False)
            self._written = now

    def _thin_out(self) -> None:
        """Keeps the hooks of those parameters alone that end a bucket."""
        order, self._order = self._order or [], None
        kept, size = {id(order[0]), id(order[-1])}, 0
        for parameter in order:
            size += parameter.numel() * parameter.element_size()
            if size >= _BUCKET_BYTES:
                kept.add(id(parameter))
                size = 0
        for parameter, handle in self._gradients:
            if id(parameter) not in kept:
                handle.remove()
        self._gradients = []

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
        for handle in self._handles:
            handle.remove()
        self._handles, self._gradients, self._order = [], [], None
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
        if not self._recorder._on:
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


def _row(step: int, stamps: List[Optional[float]]) -> str:
    """Moments that did not come, such as the first step's `began`, are empty."""
    cells = ["" if stamp is None else f"{stamp:.6f}" for stamp in stamps]
    return f"{step},{','.join(cells)}\n"


class _Clock(ABC):
    """The moments of the step that is open, and the rows of those that are known."""

    def __init__(self) -> None:
        self._now: Dict[str, Any] = {}
        self._rows: List[str] = []

    @abstractmethod
    def moment(self) -> Any:
        """Now."""

    @abstractmethod
    def close_step(self, step: int) -> None:
        """The step that is open is over."""

    def settle(self, wait: bool) -> None:
        """Looks which steps are known by now, or waits until all are."""

    def stamp(self, name: str) -> None:
        self._now[name] = self.moment()

    def stamp_once(self, name: str) -> None:
        if name not in self._now:
            self.stamp(name)

    def rows(self) -> List[str]:
        """The rows that were not given yet."""
        rows, self._rows = self._rows, []
        return rows


class _HostClock(_Clock):
    """Stamps by the host's clock, of a model that computes as it is called."""

    def moment(self) -> float:
        return time.perf_counter()

    def close_step(self, step: int) -> None:
        self._rows.append(_row(step, [self._now.get(name) for name in _STAMPS]))
        self._now = {}


class _DeviceClock(_Clock):
    """Stamps by events on the stream that computes, which are read once they have passed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._module = getattr(torch, device.type)
        self._open: Deque[Tuple[int, Dict[str, Any]]] = deque()
        # The last event whose time is known, and that time: differences of events that are far
        # apart would lose digits.
        self._known: Optional[Tuple[Any, float]] = None

    def moment(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def close_step(self, step: int) -> None:
        self._open.append((step, self._now))
        self._now = {}
        if len(self._open) > _BEHIND:
            raise RuntimeError(f"the device has not come to what it was told {_BEHIND} steps ago")
        # The step before: its events have passed, unless the host is far ahead.
        if len(self._open) > 1:
            self._read_first()

    def settle(self, wait: bool) -> None:
        if wait:
            self._module.synchronize()
        while self._open and self._read_first():
            pass

    def _read_first(self) -> bool:
        step, events = self._open[0]
        if not all(event.query() for event in events.values()):
            return False
        self._open.popleft()
        stamps: List[Optional[float]] = []
        for name in _STAMPS:
            event = events.get(name)
            stamps.append(None if event is None else self._time_of(event))
        self._rows.append(_row(step, stamps))
        return True

    def _time_of(self, event: Any) -> float:
        """Seconds since the first event."""
        if self._known is None:
            self._known = (event, 0.0)
        before, at = self._known
        moment = at + float(before.elapsed_time(event)) / 1e3
        self._known = (event, moment)
        return moment


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

    Of a rank counts the time from the end of the optimizer's step to its last gradient, before
    DistributedDataParallel waits. Under FSDP2 ranks wait for each other all along: that time is an
    upper bound there, and only what a rank does before its forward pass is its own.

    model, optimizer: what the loop calls; an optimizer that is wrapped in another's ``.optimizer``
        is found.
    folder: made where it is missing. A job that is started again adds files of its own.

    Returns a :class:`Recorder` to be closed where the process goes on without the loop. An error of
    the recorder, such as a full disk, never ends the job: one line on standard error says it.
    """
    return Recorder(model, optimizer, folder)
