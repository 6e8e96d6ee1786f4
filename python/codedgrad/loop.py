"""Coded training loops on numpy arrays, for numpy, jax and whatever else gives arrays.

A plain loop over batches becomes a coded one: a *unit* is a micro-batch, the workers compute units
as they are told to, and at the end of the inner loop every worker has the gradient of the whole batch,
the same bytes.

>>> import numpy as np
>>> from codedgrad import loop
>>> weights = np.zeros(3, dtype=np.float32)
>>> goal = np.array([1.0, -2.0, 0.5], dtype=np.float32)
>>> run = loop.join([weights], units=4, steps=200)      # alone: no environment names a run
>>> for step in run:
...     for micro in step:
...         x = micro.generator().normal(size=(8, 3)).astype(np.float32)
...         error = x @ (weights - goal)
...         micro.give([x.T @ error / 8], (error**2).mean())
...     if step.applied:
...         weights -= 0.1 * step.gradients[0]
>>> bool(np.abs(weights - goal).max() < 1e-3)
True

The same script is a worker of a run of several once the environment says where its coordinator is
(`CODEDGRAD_ADDRESS`, `CODEDGRAD_TOKEN_FILE`, `CODEDGRAD_WORKER`), or `join` is told. `serve` is that
coordinator, in a thread of a process of its own or of any other.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _native
from ._core.arrays import Arrays
from ._core.exits import Left, Replaced, RunOver, final_errors
from ._core.joining import Called, Settings, Where, layout_hash, notice_of, whole
from ._core.run import Run
from ._core.seeds import unit_seed
from ._core.session import Session
from ._core.steps import Apply, Compute, Event, Provide, Resync, Skip, Step
from ._core.units import Micro as _Micro
from ._core.warn import warn

__all__ = [
    "Apply",
    "Compute",
    "Coordinator",
    "Event",
    "Left",
    "Micro",
    "Provide",
    "Replaced",
    "Resync",
    "Run",
    "RunOver",
    "Skip",
    "Step",
    "join",
    "serve",
    "unit_seed",
]

Shape = Tuple[int, ...]


class Micro(_Micro):
    """A unit of a batch to compute: one micro-batch. Its gradient is told by `give`."""

    _gradients: Optional[Sequence[Any]] = None

    def give(self, gradients: Sequence[Any], *scalars: float) -> None:
        """The gradient of this unit: one array for each of the parameters, of its shape.

        None stands for a parameter that this unit has no gradient of. Arrays of other number
        formats are rounded to float32. `scalars` are as for `report`.

        Raises ValueError for arrays of other shapes or another number of them.
        """
        if scalars:
            self.report(*scalars)
        self._gradients = gradients

    def generator(self) -> np.random.Generator:
        """Random numbers that depend on the run's seed, the batch and the unit alone."""
        return np.random.default_rng(self.seed)


class _NumpyArrays(Arrays):
    """Arrays of numpy, or of whatever library's `save` and `load` the user gives."""

    micro = Micro

    def __init__(
        self,
        shapes: List[Shape],
        trained: Optional[List[np.ndarray]],
        save: Optional[Callable[[], bytes]],
        load: Optional[Callable[[bytes], None]],
    ):
        self._shapes = shapes
        self._trained = trained
        self._user_save = save
        self._user_load = load
        # Decoded gradients go into kept arrays, of which those that have one are shown.
        self._kept = [np.zeros(shape, dtype=np.float32) for shape in shapes]
        self._shown: List[Optional[np.ndarray]] = [None] * len(shapes)
        self._last_digest: Optional[int] = None
        # Whether it is known that the arrays are trained in place, or are not.
        self._trains_in_place: Optional[bool] = None

    def collect(self, micro: _Micro, native: _native.Worker) -> List[bool]:
        arrays = self._given(micro)
        native.take(arrays, micro.coefficient)
        return [array is not None for array in arrays]

    def _given(self, micro: _Micro) -> List[Optional[np.ndarray]]:
        """The gradient that a unit was given."""
        assert isinstance(micro, Micro)
        given = micro._gradients
        if micro.empty:
            return [None] * len(self._shapes)
        where = f"unit {micro.unit} of batch {micro.batch}"
        if given is None:
            raise RuntimeError(
                f"{where} was given no gradient: call micro.give([...]), or micro.nothing() if it "
                "has none on purpose"
            )
        if isinstance(given, np.ndarray) or len(given) != len(self._shapes):
            count = "one array" if isinstance(given, np.ndarray) else f"{len(given)} arrays"
            raise ValueError(
                f"{where} was given {count}: give a list of {len(self._shapes)}, one for each of "
                "the parameters"
            )
        arrays: List[Optional[np.ndarray]] = []
        for place, (gradient, shape) in enumerate(zip(given, self._shapes)):
            if gradient is None:
                arrays.append(None)
                continue
            array = np.ascontiguousarray(gradient, dtype=np.float32)
            if np.shape(gradient) != shape:
                raise ValueError(
                    f"gradient {place} of {where} has the shape {np.shape(gradient)}, its "
                    f"parameter {shape}"
                )
            arrays.append(array)
        return arrays

    def show(self, there: List[bool], factor: float, native: _native.Worker) -> None:
        self._shown = [array if has else None for array, has in zip(self._kept, there)]
        native.give(0, list(self._shown), factor)

    def hide(self) -> None:
        self._shown = [None] * len(self._shapes)

    def gradients(self) -> List[Any]:
        return list(self._shown)

    def save(self) -> List[bytes]:
        state = [] if self._trained is None else [array.tobytes() for array in self._trained]
        if self._user_save is not None:
            state.append(bytes(self._user_save()))
        elif self._trained is None:
            raise ValueError(
                "another worker needs this one's parameters, and join was not told how they are saved: "
                "join with save= and load="
            )
        return state

    def undo(self) -> Sequence[bytes]:
        return [] if self._trained is None and self._user_save is None else self.save()

    def load(self, state: Sequence[bytes]) -> None:
        trained = self._trained or []
        expected = len(trained) + (self._user_load is not None)
        if len(state) != expected:
            raise ValueError(f"a state of {len(state)} parts, where this worker's has {expected}")
        found = [np.frombuffer(part, dtype=np.float32) for part in state[: len(trained)]]
        for place, (numbers, array) in enumerate(zip(found, trained)):
            if numbers.size != array.size:
                raise ValueError(f"parameter {place} has {numbers.size} numbers, not {array.size}")
        for numbers, array in zip(found, trained):
            array[...] = numbers.reshape(array.shape)
        self._last_digest = None
        if self._user_load is not None:
            self._user_load(state[-1])

    def digest(self) -> int:
        return _digest(self._trained or [])

    def applied(self) -> None:
        moved = any(array is not None and array.any() for array in self._shown)
        if self._trains_in_place is not None or self._trained is None or not moved:
            return
        digest = self.digest()
        if self._last_digest is None:
            self._last_digest = digest
            return
        # Once they have changed they may stop to: training has converged.
        self._trains_in_place = self._last_digest != digest
        if not self._trains_in_place:
            warn(
                "the arrays that were given to join do not change with the steps: train them in "
                "place (`w -= ...`, not `w = w - ...`), or give shapes, save= and load="
            )


def _digest(arrays: Sequence[np.ndarray]) -> int:
    return _native.digest([np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in arrays])


@final_errors()
def join(
    parameters: Sequence[Any],
    *,
    units: int,
    steps: int,
    first: int = 0,
    micro_steps: int = 1,
    unit_samples: int = 1,
    reduction: str = "mean",
    save: Optional[Callable[[], bytes]] = None,
    load: Optional[Callable[[bytes], None]] = None,
    seed: Optional[int] = 0,
    seed_all: bool = False,
    verify: int = 1,
    scheme: Optional[str] = None,
    address: Optional[str] = None,
    token: Optional[str] = None,
    keys: Union[str, "os.PathLike[str]", None] = None,
    worker: Optional[int] = None,
    patience: float = 30.0,
    notice: Optional[float] = None,
) -> Run:
    """Joins the run that the environment or `address` names; without one, a run of this process
    alone: with the same bits as a run of several under an exact scheme whose shares are 1, 2, 4, ..
    units, and within rounding of any other exact one.

    parameters: what is trained, as a list. Arrays of float32 are hashed after each step and handed
        over to workers that fall behind, so train them in place (`w -= ...`). Of anything else
        (jax arrays, or tuples of ints as shapes) only the shape is taken: say `save` and `load`.
    units: micro-batches of a batch of the whole job, at least as many as the scheme has shares.
    steps: steps of the whole run, those before `first` counted.
    first: the first step that is not applied in the parameters; of a resumed run.
    micro_steps: batches whose gradients make a step.
    unit_samples: samples of a unit, for `Micro.samples`.
    reduction: "mean": units give means over equally many samples, the gradient is divided by
        units * micro_steps. "sum": it is not divided. "tokens": units give sums and
        `micro.report(loss, tokens)`, the gradient is divided by the decoded number of tokens.
    save, load: whatever else a replica is (optimizer state), as bytes.
    seed: of every unit's random numbers. seed_all: seed `random` and `numpy.random` with it before
        each unit, and before the body of each step.
    verify: compare digests of the parameters after every so many steps; 0 = never.
    scheme: refuse a run under another scheme.
    address: the coordinator's "host:port"; token: 64 hexadecimal digits or a file with them, or
    keys: a folder of certificates, between hosts; worker: the number wanted; patience: for how many
        seconds the coordinator is called. Where not given, the environment says them.
    notice: how many seconds this worker may take to leave when it is told to end (SIGTERM): it
        finishes its task and is let go; 0 leaves at once. Default: $CODEDGRAD_NOTICE, or 20.

    Raises ConnectionError when no coordinator answers, ValueError when the run trains something else (it
    names the field) or a number is out of range, TypeError for arrays that cannot be trained.
    """
    called = Called(address, token, keys, worker, patience, scheme, notice_of(notice))
    called.check_launcher()
    settings = Settings(
        units=units,
        steps=steps,
        first=first,
        micro_steps=micro_steps,
        unit_samples=unit_samples,
        reduction=reduction,
        seed=seed,
        seed_all=seed_all,
        verify=verify,
    ).check()
    shapes, trained = _parameters(parameters)
    if (save is None) != (load is None):
        raise ValueError("save and load go together: one of them is missing")
    if trained is None and settings.verify:
        settings = replace(settings, verify=0)
    where = Where(
        called,
        arrays=[(int(np.prod(shape, dtype=np.int64)), "float32") for shape in shapes],
        layout=layout_hash("loop", shapes),
        dtype="float32",
        versions=f"codedgrad {_native.__version__}, numpy {np.__version__}",
        start=None if trained is None else _digest(trained),
    )
    return Run(Session(where, settings, _NumpyArrays(shapes, trained, save, load)))


def _parameters(parameters: Sequence[Any]) -> Tuple[List[Shape], Optional[List[np.ndarray]]]:
    """The shapes of what is trained, and the arrays themselves if they are trained in place."""
    if isinstance(parameters, np.ndarray) or not isinstance(parameters, Sequence):
        raise TypeError(
            f"parameters is {type(parameters).__name__}: it must be a list of arrays or shapes"
        )
    if all(isinstance(array, np.ndarray) for array in parameters):
        for place, array in enumerate(parameters):
            if array.dtype != np.float32:
                raise TypeError(
                    f"parameter {place} is {array.dtype}: arrays that are trained in place are "
                    "float32; convert it, or give shapes, save= and load="
                )
            if not array.flags.writeable:
                raise TypeError(f"parameter {place} cannot be written: give a copy of it")
        return [array.shape for array in parameters], list(parameters)
    shapes: List[Shape] = []
    for place, item in enumerate(parameters):
        shape = getattr(item, "shape", item)
        try:
            shapes.append(tuple(whole("a dimension", size, 0) for size in shape))
        except TypeError:
            raise TypeError(f"parameter {place} is {item!r}: neither an array nor a shape") from None
    return shapes, None


class Coordinator:
    """A coordinator that runs in a thread of this process: see `serve`.

    In a `with` statement it is stopped at the end, unless it is over by then.
    """

    def __init__(self, told: Dict[str, Any]):
        try:
            self._native = _native.Coordinator(told)
        except ValueError as error:
            hint = _units_hint(str(error), told)
            raise ValueError(f"{error}{hint}") from None
        self._ended: Optional[bool] = None

    @property
    def address(self) -> str:
        """Where it listens, "host:port"."""
        return self._native.address

    @property
    def token(self) -> Optional[str]:
        """The job's secret in 64 hexadecimal digits, if it has one."""
        return self._native.token

    @property
    def decided(self) -> int:
        """Steps decided so far, those before the first counted."""
        return self._native.decided()[0]

    @property
    def refused(self) -> int:
        """Steps that no worker applied, since no worker had finite gradients for some unit."""
        return self._native.decided()[1]

    @property
    def survivors(self) -> List[int]:
        """Workers whose results are in the last decided gradient."""
        return self._native.decided()[2]

    def environment(self, worker: Optional[int] = None) -> Dict[str, str]:
        """What a worker's process needs in its environment to join this run.

        With keys, say `CODEDGRAD_KEYS` too: where they are on the worker's host is not known here.
        """
        variables = {"CODEDGRAD_ADDRESS": self.address}
        if self.token is not None:
            variables["CODEDGRAD_TOKEN"] = self.token
        if worker is not None:
            variables["CODEDGRAD_WORKER"] = str(whole("worker", worker, 0))
        return variables

    def wait(self, seconds: Optional[float] = None) -> Optional[bool]:
        """Waits until the run is over: true if all its steps are decided, false if it was stopped,
        None if it still goes on after so many seconds.

        Raises RuntimeError when the run could not go on, and says why.
        """
        if self._ended is None:
            try:
                self._ended = self._native.wait(seconds)
            except RuntimeError:
                self._ended = False
                raise
        return self._ended

    def stop(self) -> None:
        """Ends the run at the next step; its workers are told."""
        self._native.stop()

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._ended is None:
            self.stop()
            try:
                self.wait()
            except RuntimeError:
                # Whatever ended the body says more.
                if kind is None:
                    raise


def _units_hint(error: str, told: Dict[str, Any]) -> str:
    if "cannot be cut into" not in error:
        return ""
    workers, scheme = told["workers"], told["scheme"]
    return (
        ". units= is the number of micro-batches of the whole job, a multiple of the shares that "
        f"{scheme} has with {workers} workers"
    )


def serve(
    scheme: str,
    *,
    workers: int,
    units: int,
    steps: int,
    length: int,
    first: int = 0,
    unit_samples: int = 1,
    micro_steps: int = 1,
    address: str = "127.0.0.1:0",
    token: Optional[str] = None,
    keys: Union[str, "os.PathLike[str]", None] = None,
    wire: str = "float32",
    exchange: Optional[str] = None,
    io_threads: Optional[int] = None,
    min_workers: Optional[int] = None,
    settle: Optional[float] = None,
    max_wait: Optional[float] = None,
    gather: Optional[float] = None,
    return_within: Optional[float] = None,
    silence: Optional[float] = None,
    log_steps: Optional[int] = None,
    unit_tries: int = 3,
) -> Coordinator:
    """Coordinates a run from a thread of this process, which need not be a worker's.

    scheme: a text such as "groups:s=1", or "auto": steps are recorded uncoded, and coded where that
        pays (one line on standard error says why); workers, units, steps, first, unit_samples,
        micro_steps: as the workers say when they join; length: numbers of a gradient.
    address: where to listen, "host:port", port 0 for any free one.
    token: the job's secret, 64 hexadecimal digits or a file with them; a fresh one if not given.
    keys: a folder of certificates (`codedgrad keygen`), which addresses other than this host's need.
    wire: "float32" or "bfloat16", how vectors travel. exchange: "sharded", "star" or "hold".
    io_threads: how many threads carry bytes, of this coordinator and of those and workers that
        begin in this process later; CODEDGRAD_IO_THREADS, or half of the cores and at most 4.
    min_workers: with how few workers the run begins, once `gather` is over, and goes on: it is
        planned for those that are there. settle: seconds for which a lost one that the scheme can
        do without keeps its part in that plan; 10 if not given.
    max_wait: seconds that a round may stay open before the run gives up. gather: seconds that the
    workers may take to join. return_within: seconds that lost workers may take to come back when
    too few are left. silence: seconds after which a worker that says nothing is given up.
    log_steps: decided steps kept for workers that fall behind. unit_tries: after how many workers
    that were lost by an exception in one unit of one step the run ends.

    >>> from codedgrad import loop
    >>> with loop.serve("groups:s=1", workers=4, units=8, steps=10, length=3) as coordinator:
    ...     sorted(coordinator.environment(worker=2))
    ['CODEDGRAD_ADDRESS', 'CODEDGRAD_TOKEN', 'CODEDGRAD_WORKER']

    Raises ValueError for what cannot be a run, and says what would be right.
    """
    return Coordinator(
        {
            "scheme": scheme,
            "workers": whole("workers", workers, 1),
            "units": whole("units", units, 1),
            "steps": whole("steps", steps, 1),
            "length": whole("length", length, 1),
            "first": whole("first", first, 0),
            "unit_samples": whole("unit_samples", unit_samples, 1),
            "micro_steps": whole("micro_steps", micro_steps, 1),
            "address": address,
            "token": token,
            "keys": None if keys is None else os.fspath(keys),
            "wire": wire,
            "exchange": exchange,
            "io_threads": None if io_threads is None else whole("io_threads", io_threads, 1),
            "min_workers": min_workers,
            "settle": settle,
            "max_wait": max_wait,
            "gather": gather,
            "return_within": return_within,
            "silence": silence,
            "log_steps": log_steps,
            "unit_tries": whole("unit_tries", unit_tries, 1),
        }
    )
