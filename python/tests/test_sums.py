"""Sums of a task's gradients, made on the emulated device: bits, waits, memory, failures."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Type

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
torch = pytest.importorskip("torch")

import codedgrad.torch as coded  # noqa: E402
import fake_device  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad._torch import announcer  # noqa: E402
from codedgrad._torch.memory import PageLocks, ways_of  # noqa: E402
from codedgrad._torch.parts import Part  # noqa: E402
from codedgrad._torch.staging import stream_of  # noqa: E402
from codedgrad._torch.sums import Summing, Tree, on_device  # noqa: E402
from fake_device.apart import LIMIT_SECONDS, Apart  # noqa: E402
from test_devices import wait_for  # noqa: E402
from test_staging import FACTOR, ORDERS, Lies, Plain, Summed, Trainer  # noqa: E402
from test_staging import Vectors, factor_of, nothing, same  # noqa: E402
from torch import nn  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# How many units a worker computes in each step; none where it finds the step decided.
COMPUTES = [3, 1, 4]
LATE = [2, 0, 0, 3, 0]


@pytest.fixture(autouse=True)
def as_it_begins(monkeypatch: Any) -> Iterator[None]:
    # Every parameter is a part.
    monkeypatch.setattr(announcer, "_PART_OF_ACCELERATOR", 1)
    with fake_device.alone():
        yield


# The tree.


def added(units: Dict[int, Any]) -> Any:
    """The largest aligned blocks of consecutive units, each the sum of its halves, are added from
    right to left."""

    def block(first: int, size: int) -> Any:
        half = size // 2
        return block(first, half) + block(first + half, half) if half else units[first]

    blocks, left = [], sorted(units)
    while left:
        first, size = left[0], 1
        while first % (2 * size) == 0 and all(first + k in units for k in range(2 * size)):
            size *= 2
        blocks.append(block(first, size))
        left = left[size:]
    total = blocks.pop()
    while blocks:
        total = blocks.pop() + total
    return total


def bits_of(tensor: Any) -> bytes:
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


SHAPES = [(3, 5), (), (0,), (7,), (2, 1, 4)]
TASKS = st.fixed_dictionaries(
    {
        "device": st.sampled_from(["cpu", "fake"]),
        "first": st.integers(0, 9),
        "count": st.integers(1, 9),
        "gap": st.sampled_from([None, 0, 1, 2, 4, 5]),
        "factor": st.sampled_from([1.0, 0.3, 1 / 7, -1.0, 2.5]),
        "dtypes": st.tuples(*[st.sampled_from(DTYPES) for _ in SHAPES]),
        "missing": st.sampled_from([0.0, 0.3, 1.0]),
        "cuts": st.sets(st.integers(1, len(SHAPES) - 1)),
        "seed": st.integers(0, 2**31),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(task=TASKS)
def test_the_tree_has_the_bits_of_its_formula(task: Dict[str, Any]) -> None:
    generator, dice = torch.Generator().manual_seed(task["seed"]), random.Random(task["seed"])
    first, gap, dtypes, device = (task[each] for each in ("first", "gap", "dtypes", "device"))
    units = [
        k + (gap is not None and k >= first + gap) for k in range(first, first + task["count"])
    ]
    tree = Tree([torch.empty(shape, dtype=d, device=device) for shape, d in zip(SHAPES, dtypes)])
    everything, terms = len(SHAPES), {}
    for unit in units:
        gradients, wide = [], []
        factor = task["factor"] if unit % 2 else 1.0
        for shape, dtype in zip(SHAPES, dtypes):
            gradient = torch.randn(shape, generator=generator) * 10.0 ** dice.randint(-4, 4)
            # A zero with a sign loses that where it is added to another.
            gradient = torch.where(gradient.abs() < 1e-4, -0.0, gradient).to(dtype)
            there = dice.random() >= task["missing"]
            gradients.append(gradient.to(device) if there else None)
            wide.append((gradient.float() * factor if there else torch.zeros(shape)).reshape(-1))
        terms[unit] = torch.cat(wide)
        if unit != units[-1]:
            tree.add(unit, gradients, factor)
    right = bits_of(added(terms))
    # All at once, and some parameters after the other.
    assert bits_of(tree.total(0, everything, gradients, factor)) == right
    ends = [0, *sorted(task["cuts"]), everything]
    pieces = [tree.total(a, b, gradients[a:b], factor) for a, b in zip(ends, ends[1:])]
    assert bits_of(torch.cat(pieces)) == right
    # The same on the host, where the device's memory is at an end.
    tree.to_host()
    found = tree.total(0, everything, gradients, factor)
    assert found.device.type == "cpu" and bits_of(found) == right


# A worker without a run.


class Right(Trainer):
    """What is to be found, by the CPU."""

    def __init__(self, dtype: Any):
        super().__init__("cpu", dtype, Plain, False)

    def sums(self) -> List[Any]:
        weighted = [{k: x * factor_of(k) for k, x in enumerate(xs)} for xs in self.gradients]
        return [added(each) if each else None for each in weighted]


def summing(parameters: List[Any], make: Type[Summing] = Summing, locked: bool = True) -> Summing:
    device = torch.device("fake")
    locks = PageLocks(device, ways_of(device) if locked else None)
    return make(parameters, stream_of(device), locks)


class Adding(Trainer):
    """The same worker, whose gradients are added up on the device."""

    def __init__(
        self,
        dtype: Any = torch.float32,
        early: bool = True,
        locked: bool = True,
        make: Type[Summing] = Summing,
    ):
        super().__init__("fake", dtype, lambda these: summing(these, make, locked), early)
        self.starts = self.staging._tree.starts
        self.vectors = Vectors(self.starts[-1])
        self.room: Any = None
        self.found: List[Any] = []
        self.finite: List[Optional[bool]] = []
        settle = self.staging.settle
        self.staging.settle = lambda: self.settled(settle())

    def settled(self, finite: Optional[bool]) -> Optional[bool]:
        self.finite.append(finite)
        return finite

    def unit_of(self, number: int, units: int) -> Any:
        last = number + 1 == units
        self.room = self.vectors.take() if last else None
        self.found = [None] * len(self.parameters)
        return Summed(number, units, self.room, self.sum_of)

    def sum_of(self, first: int, end: int) -> None:
        self.taken.append((first, end))
        for place in range(first, end):
            # As a network: whoever reads too early keeps what it read.
            self.found[place] = self.room[self.starts[place] : self.starts[place + 1]].copy()

    def sums(self) -> List[Any]:
        if self.room is None:
            return [None] * len(self.parameters)
        self.vectors.give(self.room)
        self.room = None
        shapes = [each.shape for each in self.parameters]
        return [torch.from_numpy(each).view(shape) for each, shape in zip(self.found, shapes)]

    def decoded_of(self, numbers: List[Any]) -> Any:
        return Lies(self.vectors, numbers)


def trained(trainer: Trainer, plan: List[int]) -> List[Any]:
    for step, units in enumerate(plan):
        trainer.step(step, units)
    found = trainer.bits()
    # Where it makes mistakes, some copies are not over.
    torch.accelerator.synchronize()
    trainer.staging.close()
    assert fake_device.locked() == 0
    return found


FORMATS = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
EARLY = pytest.mark.parametrize("early", [False, True], ids=["after", "early"])
PLANS = pytest.mark.parametrize("plan", [COMPUTES, LATE], ids=["computes", "late"])


@EARLY
@FORMATS
@PLANS
def test_it_has_the_bits_of_the_cpu_in_any_order(plan: List[int], dtype: Any, early: bool) -> None:
    right = trained(Right(dtype), plan)
    assert all(torch.isfinite(each).all() for each in right)
    wide = dtype is torch.float32
    for policy, seed in ORDERS if wide else ORDERS[:3]:
        for protect in (False, True) if wide else (False,):
            fake_device.settings(policy, seed, protect)
            found = trained(Adding(dtype, early), plan)
            assert same(found, right), (policy, seed, protect)
    fake_device.settings("random", 3, False)
    assert same(trained(Adding(dtype, early, locked=False), plan), right)


class OnItsOwn(Adding):
    """Backward passes are computed on a stream of the script's."""

    def backward(self, step: int, number: int) -> None:
        own, current = torch.Stream(device="fake"), torch.accelerator.current_stream()
        own.wait_stream(current)
        with own:
            super().backward(step, number)
        current.wait_stream(own)


@EARLY
def test_backward_passes_on_another_stream_have_the_bits_of_the_cpu(early: bool) -> None:
    right = trained(Right(torch.float32), COMPUTES)
    for policy, seed in ORDERS:
        fake_device.settings(policy, seed, False)
        assert same(trained(OnItsOwn(early=early), COMPUTES), right), (policy, seed)


# What happens where it makes a mistake: numbers differ, or the process ends.


class NoWait(Summing):
    """The host reads what is on its way."""

    there = False

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._right = self._handing.put
        self._handing.put = self._put  # type: ignore[method-assign]

    def _put(self, order: Any, there: Any = None, kept: Any = None, always: bool = False) -> None:
        self._right(order, there if self.there else None, None, always)


class LetsGo(NoWait):
    """The memory that is copied from is free before it is copied."""

    there = True


class NoOrder(Summing):
    """Copies do not wait for the stream that computes."""

    def _send(self, *args: Any) -> None:
        right, self._event = self._event, self._none  # type: ignore[method-assign]
        super()._send(*args)
        self._event = right  # type: ignore[method-assign]

    def _none(self, stream: Any) -> Any:
        return torch.Event("fake") if stream == self._current() else super()._event(stream)


class OtherStream(Summing):
    """What is decoded comes back on a stream for which the optimizer does not wait."""

    def back(self, there: Any, decoded: Any) -> Any:
        with self._stream:  # type: ignore[union-attr]
            return super().back(there, decoded)


class GivesBack(Summing):
    """What was decoded is given back before it is copied."""

    def back(self, there: Any, decoded: Any) -> Any:
        found = super().back(there, decoded)
        self._read.clear()
        return found


class OneStream(Summing):
    """No other stream waits for what was added up."""

    def _add(self, unit: Any) -> Any:
        stream, self._stream = self._stream, None
        try:
            return super()._add(unit)
        finally:
            self._stream = stream


def mistaken(mistake: Type[Summing], plan: List[int]) -> List[Any]:
    return trained(Adding(make=mistake), plan)


MISTAKES = [(NoWait, COMPUTES, "lazy"), (NoOrder, COMPUTES, "lazy"), (GivesBack, LATE, "lazy")]
MISTAKES += [(OtherStream, plan, "lazy") for plan in (COMPUTES, LATE)]
MISTAKES += [(LetsGo, COMPUTES, "hasty")]


@pytest.mark.parametrize(("mistake", "plan", "policy"), MISTAKES)
def test_a_mistake_of_it_is_found(mistake: Type[Summing], plan: List[int], policy: str) -> None:
    fake_device.settings(policy, 0, False)
    assert not same(mistaken(mistake, plan), trained(Right(torch.float32), plan))


def test_who_does_not_wait_for_another_stream_is_found() -> None:
    right = trained(Right(torch.float32), COMPUTES)

    def found(seed: int) -> bool:
        fake_device.settings("random", seed, False)
        return not same(trained(OnItsOwn(make=OneStream), COMPUTES), right)

    assert any(found(seed) for seed in range(40))


@pytest.mark.parametrize(("mistake", "plan"), [(NoWait, COMPUTES), (GivesBack, LATE)])
def test_a_mistake_of_it_ends_the_process(
    mistake: Type[Summing], plan: List[int], tmp_path: Path
) -> None:
    ended = Apart(tmp_path / "process", mistaken, mistake, plan).end()
    assert ended.status == -signal.SIGSEGV
    assert "the host touches page-locked memory while a copy" in ended.stderr


# Waits, and what goes where.


@EARLY
def test_the_trainer_waits_for_no_unit_and_gets_the_sum_alone(early: bool) -> None:
    trainer = Adding(early=early)
    for step in range(3):
        trainer.step(step, 4)
    assert trainer.waits == 0
    count = trainer.starts[-1]
    assert trainer.staging.moved.out == 3 * 4 * count
    places = [(6, 7), (5, 6), (2, 5), (1, 2), (0, 1)] if early else [(0, 7)]
    assert trainer.taken == 3 * places
    assert trainer.staging.moved.back == 3 * 4 * (count - 5 * 5 - 5)
    trained(trainer, [])


@EARLY
@pytest.mark.parametrize("what", [0.0, float("inf"), float("-inf"), float("nan")])
def test_it_knows_whether_all_is_finite(what: float, early: bool) -> None:
    for place in range(7):
        trainer = Adding(early=early)
        trainer.staging.begin(trainer.unit_of(0, 2))
        trainer.staging.collect()
        assert trainer.staging.settle() is None
        trainer.staging.begin(trainer.unit_of(1, 2))
        for number in reversed(range(7)):
            gradient = torch.ones(trainer.parameters[number].shape, device="fake")
            if number == place:
                gradient.view(-1)[-1:].fill_(what)
            trainer.parameters[number].grad = gradient
            if early and number % 2:
                trainer.staging.out(number, min(number + 2, 7))
        trainer.staging.collect()
        assert trainer.staging.settle() is (what == 0.0), place
        trainer.staging.close()


@pytest.mark.parametrize("how", ["in place", "other", "none"])
def test_a_gradient_that_is_written_after_it_went_out_goes_out_again(how: str) -> None:
    trainer = Adding()
    staging = trainer.staging
    last = trainer.parameters[-1]
    staging.begin(trainer.unit_of(0, 1))
    last.grad = torch.full((11,), 2.0, device="fake")
    staging.out(6, 7)
    if how == "in place":
        last.grad.mul_(2)
    else:
        last.grad = last.grad * 2 if how == "other" else None
    assert staging.collect() == [False] * 6 + [how != "none"]
    assert staging.settle() is not False
    assert trainer.taken == [(6, 7), (0, 6), (6, 7)]
    assert trainer.found[-1].tolist() == [0.0 if how == "none" else 4.0] * 11
    assert not any(each.any() for each in trainer.found[:-1])
    trained(trainer, [])


def test_a_task_that_is_given_up_leaves_nothing_to_the_next() -> None:
    trainer, right = Adding(), Right(torch.float32)
    trainer.step(0, 3)
    right.step(0, 3)
    before = fake_device.memory().device
    # Between two units, after the last one, and where that has no room any more.
    for units, room in ((2, True), (3, True), (3, False)):
        for number in range(units):
            unit = trainer.unit_of(number, 3)
            unit._room = unit._room if room else None
            trainer.staging.begin(unit)
            trainer.backward(9, number)
            assert any(trainer.staging.collect())
            trainer.optimizer.zero_grad(set_to_none=True)
        trainer.taken.clear()
        assert trainer.staging.settle() is (True if units == 3 and room else None)
        assert not trainer.taken or room
        if trainer.room is not None:
            trainer.vectors.give(trainer.room)
    trainer.step(1, 3)
    right.step(1, 3)
    assert same(trainer.bits(), right.bits())
    # The partial sums of the last task, which had two units before its last.
    assert fake_device.memory().device - before <= 4 * 4096
    trained(trainer, [])


@FORMATS
def test_parts_of_dtensors_are_added_up(dtype: Any) -> None:
    """As those of a sharded model are, some of which another rank hands over."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    def whole(numbers: Any) -> Any:
        return nn.Parameter(DTensor.from_local(numbers, mesh, [Shard(0)], run_check=False))

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh, device = DeviceMesh("fake", [0], _init_backend=False), torch.device("fake")
        gradients = [torch.randn(shape).to(dtype) for shape in [(3, 5), (0,), (4100,)]]
        wholes = [whole(torch.zeros_like(each, device="fake")) for each in gradients]
        parts = [Part(each) for each in wholes]
        staging = Summing(parts, stream_of(device), PageLocks(device, ways_of(device)), [0, 2])
        vectors = Vectors(15 + 4100)
        room = vectors.take()
        for number in range(2):
            staging.begin(Summed(number, 2, room, nothing))
            for part, gradient in zip(parts, gradients):
                part.grad = gradient.to("fake")
            assert staging.collect() == [True] * 2
        assert staging.settle() is True
        wide = torch.cat([gradients[place].float().view(-1) for place in (0, 2)])
        found = torch.from_numpy(room)
        assert torch.equal(found, wide * factor_of(0) + wide * factor_of(1))

        decoded = Lies(vectors, [each.float().flip(0) for each in gradients])
        for part, gradient in zip(parts, staging.back([True] * 3, decoded)):
            part.grad = gradient
        for each, gradient in zip(wholes, gradients):
            assert isinstance(each.grad, DTensor) and each.grad.placements == (Shard(0),)
            right = (gradient.float().flip(0) * FACTOR).to(dtype)
            assert torch.equal(each.grad.to_local().cpu(), right)
        staging.close()
    finally:
        torch.distributed.destroy_process_group()


# Runs.


# What came of one: the model's bits, and `Run.report`.
Did = NamedTuple("Did", [("bits", List[bytes]), ("report", Dict[str, Any])])


# How many numbers the model has, in four parameters.
SMALL = 2 * (32 * 32 + 32)


def small(device: str) -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).to(device)


def loss_of(model: Any, micro: Any) -> Any:
    x = torch.randn(2, 32, generator=micro.generator()).to(model[0].weight.device)
    return model(x).square().mean()


def run_of(
    model: Any,
    before: Callable[[Any, Any], None] = nothing,
    after: Callable[[Any], None] = nothing,
    loss: Callable[[Any, Any], Any] = loss_of,
    **more: Any,
) -> Did:
    """One worker. `before` is called before a loss is computed, `after` when a step is decided; a
    micro-batch without a loss has none on purpose."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True)
    more = {"units": 8, "steps": 3, "verify": 0, **more}
    with coded.join(model, optimizer, **more) as run:
        for step in run:
            for micro in step:
                before(step, micro)
                found = loss(model, micro)
                if found is None:
                    micro.nothing()
                else:
                    found.backward()
            after(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report = run.report()
    return Did([bits_of(each) for each in model.parameters()], report)


OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["after", "overlap"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("units", [1, 2, 4, 8])
def test_it_takes_one_sum_for_each_doubling_of_the_micro_batches(units: int, dtype: Any) -> None:
    """Gradients of P parameters of b bytes each take at most

        4 P (floor(log2 u) + 1) + b P

    bytes of the device in a task of u micro-batches: partial sums in float32, of which the last one
    is the task's, and a gradient. Of the host's memory 4 P (k + 3) bytes are page-locked at most,
    where k decided steps are kept: 16, or fewer where that were too much memory.
    """
    count, size = 2 * 128 * 128, torch.finfo(dtype).bits // 8
    layers = [nn.Linear(128, 128, bias=False) for _ in range(2)]
    model = nn.Sequential(*layers).to(dtype).to("fake")
    x = torch.ones(2, 128, dtype=dtype).to("fake")
    before = fake_device.memory()
    model(x).float().square().mean().backward()
    # Activations, and some single numbers of a page each.
    others = fake_device.memory().device_peak - before.device - size * count + 4 * 4096
    model.zero_grad()
    begun, most, pinned = [], [], []

    def begins(_: Any, micro: Any) -> None:
        if micro.unit == 0:
            begun.append(fake_device.memory().device)

    def ends(_: Any) -> None:
        found = fake_device.memory()
        most.append(found.device_peak - begun[-1])
        pinned.append(found.pinned - before.pinned)

    def loss(*_: object) -> Any:
        return model(x).float().square().mean()

    run_of(model, begins, ends, loss, units=units, steps=20)
    assert 0 < max(most) <= 4 * count * units.bit_length() + size * count + others
    assert max(pinned) <= 4 * count * (16 + 3) + 2 * 4096


def test_where_some_memory_is_not_page_locked_it_has_the_bits_of_the_cpu() -> None:
    fake_device.limits(pinned=fake_device.memory().pinned + 4 * 4096)
    told = f"^{4 * SMALL} bytes of the host's memory cannot be page-locked for fake"
    with pytest.warns(RuntimeWarning, match=told) as warned:
        found = run_of(small("fake"))
    assert {each.filename for each in warned} == {__file__}
    assert found.bits == run_of(small("cpu")).bits


def test_the_host_adds_up_if_it_is_told_to(monkeypatch: Any) -> None:
    right = run_of(small("cpu")).bits
    on_the_device = run_of(small("fake"))
    monkeypatch.setenv("CODEDGRAD_STAGING", "host")
    found = run_of(small("fake"))
    assert on_the_device.bits == found.bits == right
    moved = [each.report["device"]["out"]["bytes"] for each in (on_the_device, found)]
    assert moved == [3 * 4 * SMALL, 3 * 8 * 4 * SMALL]
    monkeypatch.setenv("CODEDGRAD_STAGING", "device")
    assert on_device()
    monkeypatch.setenv("CODEDGRAD_STAGING", "cpu")
    with pytest.raises(ValueError, match="^CODEDGRAD_STAGING is 'cpu': it is device, .* or host$"):
        run_of(small("fake"))


# Models of all kinds.


class Mixed(nn.Module):
    """Parameters of shapes and formats by chance, of which each micro-batch uses some."""

    def __init__(self, seed: int, device: str):
        super().__init__()
        dice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
        parts = []
        for _ in range(dice.randint(1, 5)):
            shape = dice.choice([(), (5,), (3, 4), (2, 1, 3), (40, 40)])
            numbers = torch.randn(shape, generator=generator).to(dice.choice(DTYPES))
            parts.append(nn.Parameter(numbers.to(device)))
        self.parts = nn.ParameterList(parts)
        self.device = device
        self.units, self.overlap = dice.randint(1, 6), dice.random() < 0.7
        self.drops = dice.choice([0.0, 0.2])
        self.uses_all, self.order = dice.random() < 0.5, dice.choice(ORDERS)


def loss_by_chance(model: Any, micro: Any) -> Any:
    generator = micro.generator()
    dice = random.Random(generator.initial_seed())
    if dice.random() < model.drops:
        return None
    count = len(model.parts)
    used = dice.sample(range(count), count if model.uses_all else dice.randint(1, count))
    x = [torch.randn(each.shape, generator=generator) for each in model.parts]
    sums = [(model.parts[k].float() * x[k].to(model.device)).tanh().sum() for k in sorted(used)]
    return torch.stack(sums).sum().square() / 50


def of_chance(seed: int, device: str, **more: Any) -> Did:
    model = Mixed(seed, device)
    fake_device.settings(*model.order, protect=False)
    more = {"units": model.units, "overlap": model.overlap, "steps": 3, **more}
    return run_of(model, loss=loss_by_chance, **more)


@pytest.mark.parametrize("tens", range(10))
def test_models_by_chance_have_the_bits_of_the_cpu(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        assert of_chance(seed, "fake").bits == of_chance(seed, "cpu").bits, seed


def workers_by_chance(runs: List[Dict[str, Any]], worker: int, folder: Path) -> List[Did]:
    """One of two workers of some runs. The second comes with its first micro-batch when the first
    is in the third step."""
    announcer._PART_OF_ACCELERATOR = 1
    found = []
    for seed, where in enumerate(runs):
        reached = folder / f"reached-{seed}"
        late = [reached] if worker == 1 else []

        def before(step: Any, _: Any, reached: Path = reached, late: List[Path] = late) -> None:
            if worker == 0 and step.index == 2:
                reached.touch()
            while late:
                wait_for(late.pop())

        found.append(of_chance(seed, "fake", before=before, worker=worker, **where))
    return found


def test_late_workers_of_models_by_chance_have_the_bits_of_the_cpu(tmp_path: Path) -> None:
    right = [of_chance(seed, "cpu").bits for seed in range(10)]
    with contextlib.ExitStack() as stack:
        runs = []
        for seed in range(10):
            model = Mixed(seed, "cpu")
            more = {"length": coded.length(model), "max_wait": LIMIT_SECONDS}
            more.update(workers=2, units=model.units, steps=3)
            run = stack.enter_context(loop.serve("groups:s=1", **more))
            runs.append({"address": run.address, "token": run.token})
        given = [(workers_by_chance, runs, worker, tmp_path) for worker in range(2)]
        workers = [Apart(tmp_path / str(each[2]), *each) for each in given]
        found = [worker.result() for worker in workers]
    assert [[did.bits for did in each] for each in found] == [right] * 2
    assert sum(did.report["abandoned"] for did in found[1]) >= 5


# How runs end.


@pytest.mark.parametrize("at", [(0, 0), (0, 3), (1, 0), (1, 4), (2, 7)])
def test_a_run_can_be_left_between_two_micro_batches(at: Tuple[int, int]) -> None:
    def leaves(step: Any, micro: Any) -> None:
        if (step.index, micro.unit) == at:
            raise KeyError("left")

    gc.collect()
    threads = set(threading.enumerate())
    before = fake_device.memory().device, 0
    with pytest.raises(KeyError, match="left"):
        run_of(small("fake"), leaves)
    gc.collect()
    assert (fake_device.memory().device, fake_device.locked()) == before
    deadline = time.monotonic() + 30
    while not set(threading.enumerate()) <= threads:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert run_of(small("fake"), steps=1).bits == run_of(small("cpu"), steps=1).bits


@OVERLAPS
@pytest.mark.parametrize("unit", [0, 3, 7])
def test_a_kernel_that_fails_between_two_micro_batches_is_told(unit: int, overlap: bool) -> None:
    def fails(step: Any, micro: Any) -> None:
        if (step.index, micro.unit) == (1, unit):
            fake_device.fail("out of order")

    with pytest.raises(RuntimeError, match="the emulated device has failed: out of order"):
        run_of(small("fake"), fails, overlap=overlap)
    assert run_of(small("fake"), steps=1).bits == run_of(small("cpu"), steps=1).bits
