"""Makes a script that was written for DistributedDataParallel a worker: `prepare`."""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn
from torch.utils.data import DataLoader

from .._core.exits import final_errors
from .._core.joining import Called, Settings, notice_of, whole, workers_told
from .._core.loops import loop_of
from .._core.run import Membership
from .._core.session import Session
from .._core.units import Totals
from .._core.warn import renamed
from . import outputs, watch
from .body import Body
from .cell.ranks import Ranks
from .gate import Gates
from .iterations import Iterations, follow
from .joining import joined, optimizers_of, verify_of
from .outputs import CodedModule, leave_uncompiled
from .samples import PreparedLoader, Samples
from .watch import GradScaler, Kept, check_scaler


class PreparedRun(Membership):
    """A worker's part in a run whose loop is the script's own: `model.run`."""

    def __init__(self, session: Session, iterations: Iterations):
        super().__init__(session)
        self._iterations = iterations

    @property
    def index(self) -> int:
        """The step that this iteration belongs to, from 0: count with it, not with iterations."""
        self._iterations.body.asked = True
        return self._iterations.index

    @property
    def sync_gradients(self) -> bool:
        """Whether `p.grad` is the whole batch's: true after `backward()` in the iteration that
        commits its step. Accelerate has the same name for it."""
        self._iterations.body.asked = True
        return self._iterations.sync_gradients

    @property
    def whole(self) -> bool:
        """The old name of `sync_gradients`, which warns."""
        renamed("run.whole", "run.sync_gradients")
        return self.sync_gradients

    @property
    def hollow(self) -> bool:
        """Whether this iteration is skipped: it computes nothing, as its step is committed."""
        return self._iterations.hollow

    @property
    def totals(self) -> Totals:
        """Sums over the whole batch of the scalars given to `report`, of the last committed step.
        Each unit counts once, with all of its `accumulate` batches: divide a loss by units *
        accumulate. NaN if one of them is not finite, and in a skipped step."""
        return self._iterations.totals

    def report(self, *scalars: Any) -> None:
        """Reports scalars of this iteration, such as its loss; with `reduction="tokens"` the second
        is the number of tokens. Call it before `backward()`. The `accumulate` batches of one unit
        are added up; a skipped iteration ignores them."""
        self._iterations.report(*scalars)

    def nothing(self) -> None:
        """Declares that this iteration has no loss, and so no backward pass."""
        self._iterations.nothing()

    def iterations(self) -> Iterator[int]:
        """The iterations of a loop without a loader: `for _ in model.run.iterations():`. Each yields
        the number of its step. The run seeds random numbers for each unit, so draw a unit's
        samples within its iteration."""
        return loop_of(self._all(), self._iterations.loop_left)

    def passages(self) -> Iterator[int]:
        """The old name of `iterations`, which warns."""
        renamed("run.passages()", "run.iterations()")
        return self.iterations()

    def _all(self) -> Iterator[int]:
        self._iterations.resume(self.settings.steps)
        while self._iterations.begin():
            # The script is told of the step.
            self._iterations.body.asked = True
            yield self._iterations.index

    def work(self) -> Dict[str, Any]:
        """Counts of what this worker did, such as `skipped` steps and state transfers (`resyncs`),
        and its seconds by phase, as `Run.report`."""
        return self._session.report()

    def close(self) -> None:
        """Leaves the run for good. A second call does nothing."""
        self._iterations.leave()


@dataclass
class _Given:
    """What `prepare` was given, by kinds, each in its order."""

    models: List[nn.Module] = field(default_factory=list)
    optimizers: List[torch.optim.Optimizer] = field(default_factory=list)
    loaders: List["DataLoader[Any]"] = field(default_factory=list)
    schedules: List[Any] = field(default_factory=list)
    scalers: List[GradScaler] = field(default_factory=list)
    #: By which device inputs are moved to, if DistributedDataParallel was told.
    device_ids: Optional[Sequence[Any]] = None

    def sort_in(self, item: Any) -> Any:
        """Puts an object where it belongs; gives back what says where its successor is."""
        if item is None:
            return lambda made: None
        if isinstance(item, (list, tuple)):
            places = [self.sort_in(each) for each in item]
            return lambda made: type(item)(place(made) for place in places)
        kind, name = self._kind_of(item)
        kind.append(self._unwrapped(item))
        place = len(kind) - 1
        return lambda made: made[name][place]

    def _kind_of(self, item: Any) -> Tuple[List[Any], str]:
        if isinstance(item, nn.Module):
            return self.models, "models"
        if isinstance(item, torch.optim.Optimizer):
            return self.optimizers, "optimizers"
        if isinstance(item, DataLoader):
            if self.loaders:
                raise TypeError(
                    "prepare was given two loaders: give it the one of the training loop. Others, "
                    "such as those for evaluation, stay as they are, without a DistributedSampler"
                )
            return self.loaders, "loaders"
        if isinstance(item, GradScaler):
            return self.scalers, "scalers"
        check_scaler("", item)
        if callable(item) or _is_schedule(item):
            return self.schedules, "schedules"
        raise TypeError(
            f"prepare was given a {type(item).__name__}: it takes models, optimizers, a DataLoader "
            "and schedulers. Pass other state of the replica in state="
        )

    def _unwrapped(self, item: Any) -> Any:
        if isinstance(item, CodedModule):
            # Of a run that was closed; in one that goes on it is refused.
            return item.module
        if not isinstance(item, nn.parallel.DistributedDataParallel):
            return item
        ranks = torch.distributed.get_world_size(item.process_group)
        if ranks > 1:
            raise TypeError(
                f"the model is in a DistributedDataParallel over {ranks} ranks, which waits for all "
                "of them: give prepare the module itself, and leave init_process_group out"
            )
        if getattr(item, "_comm_hooks", None):
            raise TypeError(
                "the model has a register_comm_hook, and torch.distributed does not reduce the "
                "gradients here: leave it out"
            )
        if self.device_ids is None:
            self.device_ids = item.device_ids
        return item.module

    def deal(self, units: int, accumulate: int, seed: int, ranks: int) -> Optional[Samples]:
        """Which samples units have; none without a loader."""
        dealt = [Samples(each, units, accumulate, seed, ranks) for each in self.loaders]
        return dealt[0] if dealt else None

    def make_schedules(self, steps: int) -> None:
        """Schedulers of functions of optimizer and steps."""
        for place, schedule in enumerate(self.schedules):
            if _is_schedule(schedule):
                continue
            if len(self.optimizers) not in (1, len(self.schedules)):
                raise TypeError(
                    f"{len(self.schedules)} schedules for {len(self.optimizers)} optimizers: a "
                    "function (optimizer, steps) is called with the optimizer in its own place"
                )
            made = schedule(self.optimizers[min(place, len(self.optimizers) - 1)], steps)
            if not _is_schedule(made):
                raise TypeError(
                    f"a schedule, called with (optimizer, steps), gave a {type(made).__name__}: it "
                    "must be a scheduler"
                )
            self.schedules[place] = made

    @property
    def schedulers(self) -> List[Any]:
        """Those that count steps: Accelerate's wrapper has its own in it."""
        return [getattr(each, "scheduler", each) for each in self.schedules]

    def handed_over(self, kept: Kept, state: Mapping[str, Any]) -> Dict[str, Any]:
        """What goes to a worker that falls behind, beside models and optimizers."""
        for name, item in state.items():
            check_scaler(f"state[{name!r}] is a ", item)
        return {
            **{f"scheduler {place}": each for place, each in enumerate(self.schedulers)},
            **{f"scaler {place}": each for place, each in enumerate(self.scalers)},
            # No name that a user's own state is likely to have, which would take its place.
            "loop iterations": kept,
            **state,
        }

    def made(
        self,
        run: PreparedRun,
        iterations: Iterations,
        samples: Optional[Samples],
        device: Optional[torch.device],
    ) -> Dict[str, List[Any]]:
        """What the loop is to use instead, by the same kinds and in the same order."""
        loaders: List[Any] = []
        if samples is not None:
            settings = run.settings
            loaders = [PreparedLoader(each, samples, iterations, settings) for each in self.loaders]
        return {
            "models": [CodedModule(each, iterations, run, device) for each in self.models],
            "optimizers": self.optimizers,
            "schedules": self.schedules,
            "scalers": self.scalers,
            "loaders": loaders,
        }


def _is_schedule(item: Any) -> bool:
    """Whether it is a scheduler, and not a class or a function that makes one."""
    made = not isinstance(item, type)
    return made and hasattr(item, "step") and hasattr(item, "state_dict")


def _length(steps: Optional[int], epochs: Optional[int], samples: Optional[Samples]) -> int:
    """The steps of the whole run."""
    if (steps is None) == (epochs is None):
        raise ValueError("prepare needs one of steps= and epochs=, the length of the whole run")
    if epochs is None:
        return whole("steps", steps, 1)
    if samples is None:
        raise ValueError("epochs= without a loader: pass steps=")
    return whole("epochs", epochs, 1) * samples.steps


def _units(units: Optional[int], called: Called, ranks: bool) -> int:
    if units is not None:
        return whole("units", units, 1)
    if called.alone:
        return 1
    workers = workers_told(ranks)
    if workers is None:
        raise ValueError(
            "units= is needed: it is the number of workers, and neither CODEDGRAD_WORKERS nor a "
            "launcher says how many there are"
        )
    return workers


def _device_of(given: _Given, device_ids: Optional[Sequence[Any]]) -> Optional[torch.device]:
    """Where inputs are moved to."""
    ids = device_ids if device_ids is not None else given.device_ids
    if not ids:
        return None
    parameter = next(given.models[0].parameters(), None)
    kind = "cpu" if parameter is None else parameter.device.type
    # Numbers are of the model's kind of device.
    return torch.device(kind, ids[0]) if isinstance(ids[0], int) else torch.device(ids[0])


@final_errors()
def prepare(
    *objects: Any,
    steps: Optional[int] = None,
    epochs: Optional[int] = None,
    units: Optional[int] = None,
    accumulate: int = 1,
    first: int = 0,
    reduction: str = "mean",
    state: Optional[Mapping[str, Any]] = None,
    seed: Optional[int] = 0,
    seed_all: bool = False,
    verify: Optional[int] = None,
    sync: bool = True,
    scheme: Optional[str] = None,
    address: Optional[str] = None,
    token: Optional[str] = None,
    keys: Union[str, "os.PathLike[str]", None] = None,
    worker: Optional[int] = None,
    patience: float = 30.0,
    notice: Optional[float] = None,
    overlap: Optional[bool] = None,
    mesh: Optional[Any] = None,
    data: Union[str, Sequence[str], None] = None,
    device_ids: Optional[Sequence[Any]] = None,
) -> Any:
    """Makes a script for DistributedDataParallel a worker: its loop stays as it is.

    Returns the objects that the loop uses, in the given order: for a model a `CodedModule` in
    DistributedDataParallel's place, for a `DataLoader` a loader of the units' batches, and optimizers
    and schedulers themselves. Models, optimizers and schedulers may be lists, as in `join`. A schedule
    may be a function of (optimizer, steps) that makes one; `steps` counts optimizer steps.

    >>> import torch
    >>> import codedgrad.torch as coded
    >>> data = [(torch.tensor([float(x)]), torch.tensor([2.0 * x])) for x in range(8)]
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), 0.02)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    >>> model, optimizer, loader = coded.prepare(model, optimizer, loader, epochs=200)
    >>> for epoch in range(200):
    ...     for x, y in loader:
    ...         loss = torch.nn.functional.mse_loss(model(x), y)
    ...         loss.backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> bool(abs(model.module.weight.item() - 2) < 0.1)
    True

    A *unit* is a micro-batch, which one rank of DistributedDataParallel would compute: `accumulate`
    batches of the loader. A step may take a worker several iterations of the loop, or a skipped one
    that computes nothing, as the step is committed. `optimizer.step()`, `zero_grad()` and
    `scheduler.step()` act once for each step. Count with `model.run.index`, not with iterations.

    steps or epochs: length of the whole run, including the steps before `first`.
    units: micro-batches of the whole batch; None: one for each worker. `queue:m` needs workers x m.
        More of them make the batch larger, and the steps of an epoch fewer.
    accumulate: batches of the loader in a unit, each with a backward pass of its own.
    first: the first step that the loaded checkpoint lacks. With sync, worker 0's counts.
    reduction, state, seed, seed_all, verify, scheme, overlap, mesh, data: as for `join`. seed also
        orders the samples, as that of DistributedSampler.
    sync: begin with worker 0's parameters, as under DistributedDataParallel; else all workers must
        begin with the same ones.
    address, token, keys, worker, patience, notice: as for `codedgrad.loop.join`.
    device_ids: [device] to which inputs are moved, as DistributedDataParallel does.

    Raises the errors of `join`, and TypeError or ValueError for an object that cannot be prepared: the
    error says what to write instead.
    """
    called = Called(address, token, keys, worker, patience, scheme, notice_of(notice))
    called.check_launcher(mesh is not None)
    given = _Given()
    places = [given.sort_in(item) for item in objects]
    if not given.models:
        raise TypeError("prepare was given no model: prepare(model, optimizer, loader, ..)")
    accumulate = whole("accumulate", accumulate, 1)
    units = _units(units, called, mesh is not None)
    ranks = None if mesh is None else Ranks(mesh, data)
    size = 1 if ranks is None else ranks.parts
    samples = given.deal(units, accumulate, seed or 0, size)
    length = _length(steps, epochs, samples)
    given.make_schedules(length)
    kept = Kept(len(given.schedules))
    session = joined(
        given.models,
        given.optimizers,
        Settings(
            units=units,
            steps=length,
            first=first,
            unit_samples=size if samples is None else samples.unit_samples,
            reduction=reduction,
            seed=seed,
            seed_all=seed_all,
            verify=verify_of(given.models, verify),
        ),
        called,
        state=given.handed_over(kept, state or {}),
        overlap=overlap,
        ranks=ranks,
        accumulate=accumulate,
        sync=sync,
    )
    optimizers = optimizers_of(given.optimizers)
    body = Body(given.models, optimizers)
    iterations = Iterations(session, optimizers, accumulate, bool(given.loaders), body)
    # A schedule may count epochs.
    lengths = {length, epochs if samples is None else length // samples.steps}
    _watch(iterations, Gates(iterations, optimizers, given.schedulers, kept, lengths))
    device = _device_of(given, device_ids)
    made = given.made(PreparedRun(session, iterations), iterations, samples, device)
    found = tuple(place(made) for place in places)
    return found[0] if len(found) == 1 else found


def _watch(iterations: Iterations, gates: Gates) -> None:
    """What is in the user's objects, and in PyTorch, until there are no more iterations."""
    leave_uncompiled()
    outputs.watch(iterations)
    watch.watch(iterations)
    iterations.at_end += [
        gates.close,
        lambda: outputs.unwatch(iterations),
        lambda: watch.unwatch(iterations),
    ]
    followed = follow(iterations)
    if followed is not None:
        iterations.at_end.append(followed)
    atexit.register(_process_ends, weakref.ref(iterations))


def _process_ends(known: "weakref.ref[Iterations]") -> None:
    iterations = known()
    if iterations is not None:
        iterations.process_ends()
