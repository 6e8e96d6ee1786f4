"""Gradients between an accelerator and the host, on the emulated device: bits, waits, failures."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Iterator, List, Tuple, Type

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
torch = pytest.importorskip("torch")

import fake_device  # noqa: E402
from codedgrad._torch.announcer import Announcer  # noqa: E402
from codedgrad._torch.host import Room  # noqa: E402
from codedgrad._torch.parts import Part  # noqa: E402
from codedgrad._torch.staging import Staging, stream_of  # noqa: E402
from fake_device.apart import Apart  # noqa: E402
from runs import tree_sum  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)

ORDERS = [("lazy", 0), ("hasty", 0), *(("random", seed) for seed in range(3))]
# What a worker does in each step: computes units, or finds the step decided.
COMPUTES = [2, 2, 2]
LATE = [1, 0, 0, 0, 1, 0, 0]
# What is decoded is multiplied with.
FACTOR = 0.3


@pytest.fixture(autouse=True)
def as_it_begins() -> Iterator[None]:
    with fake_device.alone():
        yield


class Model(nn.Module):
    """Parameters of more and of less than a page, some without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 40)
        self.hidden = nn.Linear(40, 40)
        self.unused = nn.Linear(5, 5)
        self.head = nn.Linear(40, 11)

    def forward(self, tokens: Any) -> Any:
        return self.head(F.gelu(self.hidden(self.embedding(tokens))))


class Taken:
    """A unit without a run, which tells what is done with it."""

    def __init__(self, take: Callable[[int, List[Any]], None], go_on: Callable[[], None]):
        self.number, self.begins, self.ends, self.factor = 0, True, True, 1.0
        self.hand_over = take
        self._go_on = go_on

    def go_on(self, summed: bool = False) -> None:
        assert not summed
        self._go_on()


class Written:
    """What was decoded, where somebody writes it."""

    def __init__(self, write: Callable[[int, List[Any]], None]):
        self.write = write


def factor_of(number: int) -> float:
    """What a unit's gradient is multiplied with."""
    return 1.0 if number == 0 else 1 / (2 + number)


class Vectors:
    """A run's memory: vectors that go round, and are poison where nobody has them."""

    def __init__(self, count: int):
        self._count = count
        self._free: List[Any] = []
        self._all: List[Any] = []

    def take(self) -> Any:
        if not self._free:
            # None begins with a page, but in each the model's largest parameter does.
            numbers = np.full(self._count + 1024, np.nan, np.float32)
            first = (4096 - 4 * 440 - numbers.ctypes.data) % 4096 // 4
            self._all.append(numbers)
            self._free.append(numbers[first : first + self._count])
        return self._free.pop()

    def give(self, vector: Any) -> None:
        vector.fill(np.nan)
        self._free.append(vector)


class Kept:
    """As long as this is kept, so is a vector."""

    def __init__(self, vectors: Vectors, vector: Any):
        weakref.finalize(self, vectors.give, vector)


class Summed:
    """A unit of a task without a run, whose sum goes to a vector."""

    def __init__(self, number: int, units: int, room: Any, written: Callable[[int, int], None]):
        self.number, self.factor = number, factor_of(number)
        self.begins, self.ends = number == 0, number + 1 == units
        self.written = written
        self._room = room

    def go_on(self, summed: bool) -> None:
        assert summed

    def room(self) -> Any:
        assert self.ends
        if self._room is None:
            return None
        room = torch.from_numpy(self._room)
        # As a rank of several has it: here and there in the worker's vector.
        return Room(list(torch.split(room, 7)), room)


class Lies:
    """What was decoded, where it lies."""

    factor = FACTOR

    def __init__(self, vectors: Vectors, numbers: List[Any]):
        self._vectors, self._numbers = vectors, numbers

    def lies(self, parameters: List[Any]) -> Tuple[object, Any, List[Any]]:
        vector = self._vectors.take()
        whole = torch.from_numpy(vector)
        sources, start = [], 0
        for parameter, numbers in zip(parameters, self._numbers):
            sources.append(whole[start:])
            if numbers is not None:
                whole[start : start + parameter.numel()] = numbers.reshape(-1)
            start += parameter.numel()
        return Kept(self._vectors, vector), whole, sources


class Plain:
    """What `Staging` does, where the gradients are in the host's memory."""

    early = False

    def __init__(self, parameters: List[Any]):
        self._parameters = parameters
        self._decoded = [torch.empty_like(each) for each in parameters]
        self._unit: Any = None

    def begin(self, unit: Any) -> None:
        self._unit = unit
        unit.go_on()

    def settle(self) -> None:
        pass

    def collect(self) -> List[bool]:
        gradients = [each.grad for each in self._parameters]
        self._unit.hand_over(0, [None if x is None else numbers(x) for x in gradients])
        return [x is not None for x in gradients]

    def back(self, there: List[bool], decoded: Any) -> List[Any]:
        decoded.write(0, [numbers(x) if has else None for x, has in zip(self._decoded, there)])
        return [x.detach().clone() if has else None for x, has in zip(self._decoded, there)]

    def close(self) -> None:
        pass


def staged(parameters: List[Any], make: Type[Staging] = Staging) -> Staging:
    """The way of parameters' gradients, with a stream of its own if there are any."""
    return make(parameters, stream_of(torch.device("fake")))


def numbers(tensor: Any) -> Any:
    whole = tensor.element_size() == 2
    return tensor.detach().view(torch.int16 if whole else torch.float32).numpy()


def tensor_of(array: Any, dtype: Any) -> Any:
    return torch.from_numpy(array).view(dtype)


class Trainer:
    """A worker without a run: its own units' sum is decoded, or what others would have computed."""

    def __init__(self, device: str, dtype: Any, make: Callable[[List[Any]], Any], early: bool):
        torch.manual_seed(3)
        self.model = Model().to(dtype).to(device)
        self.device, self.dtype = device, dtype
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, 0.5, momentum=0.9, foreach=False)
        self.staging = make(self.parameters)
        self.early = early and self.staging.early
        # Of each parameter the gradients of a task's units, and in which order they were taken.
        self.gradients: List[List[Any]] = []
        self.taken: List[Tuple[int, int]] = []
        # How many units were gone on to, and how often this thread has waited for the device.
        self.units = 0
        self.waits = 0
        self._final = 0
        for place, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: self.written(place))

    def written(self, place: int) -> None:
        """The last parameter's gradient is final first; the one that has none is passed over."""
        if self.early and place < self._final:
            self.staging.out(place, self._final)
            self._final = place

    def go_on(self) -> None:
        self.units += 1

    def take(self, first: int, arrays: List[Any]) -> None:
        self.taken.append((first, first + len(arrays)))
        for place, array in enumerate(arrays, first):
            if array is not None:
                # As into a message: whoever reads too early keeps what it read.
                self.gradients[place].append(tensor_of(array, self.dtype).float().clone())

    def unit_of(self, number: int, units: int) -> Any:
        """One of so many units of a task."""
        return Taken(self.take, self.go_on)

    def decoded_of(self, numbers: List[Any]) -> Any:
        """What was decoded for each parameter, before it is multiplied."""

        def write(first: int, arrays: List[Any]) -> None:
            for place, array in enumerate(arrays, first):
                if array is not None:
                    tensor_of(array, self.dtype).copy_(numbers[place] * FACTOR)

        return Written(write)

    def sums(self) -> List[Any]:
        """Those of a task's gradients, in float32."""
        return [tree_sum(gradients) for gradients in self.gradients]

    def unit(self, step: int, number: int, units: int) -> List[bool]:
        self.optimizer.zero_grad(set_to_none=True)
        began = fake_device.counts().waits
        self.staging.begin(self.unit_of(number, units))
        self._final = len(self.parameters)
        self.backward(step, number)
        there: List[bool] = self.staging.collect()
        self.waits += fake_device.counts().waits - began
        return there

    def backward(self, step: int, number: int) -> None:
        generator = torch.Generator().manual_seed(100 * step + number)
        tokens = torch.randint(0, 11, (2, 7), generator=generator).to(self.device)
        logits = self.model(tokens[:, :-1]).flatten(0, 1).float()
        F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()

    def step(self, step: int, units: int) -> None:
        there = [True] * len(self.parameters)
        self.gradients = [[] for _ in self.parameters]
        for number in range(units):
            there = self.unit(step, number, units)
        self.staging.settle()
        generator = torch.Generator().manual_seed(step)
        numbers = self.sums()
        if not units:
            numbers = [torch.randn(each.shape, generator=generator) for each in self.parameters]
        found = self.staging.back(there, self.decoded_of(numbers))
        for parameter, gradient in zip(self.parameters, found):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def bits(self) -> List[Any]:
        return [each.detach().cpu() for each in self.parameters]


def trained(
    device: str,
    plan: List[int],
    dtype: Any = torch.float32,
    make: Callable[[List[Any]], Any] = staged,
    early: bool = True,
) -> List[Any]:
    trainer = Trainer(device, dtype, Plain if device == "cpu" else make, early)
    for step, units in enumerate(plan):
        trainer.step(step, units)
    found = trainer.bits()
    trainer.staging.close()
    return found


def same(found: List[Any], right: List[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, right))


PLANS = pytest.mark.parametrize("plan", [COMPUTES, LATE], ids=["computes", "late"])


@pytest.mark.parametrize("early", [False, True], ids=["after", "early"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@PLANS
def test_it_has_the_bits_of_the_host_in_any_order(plan: List[int], dtype: Any, early: bool) -> None:
    right = trained("cpu", plan, dtype)
    assert all(torch.isfinite(each).all() for each in right)
    for policy, seed in ORDERS:
        for protect in (False, True):
            fake_device.settings(policy, seed, protect)
            assert same(trained("fake", plan, dtype, early=early), right), (policy, seed, protect)


# What happens where it makes a mistake: numbers differ, or the process ends.


class NoWait(Staging):
    """The host reads what is on its way."""

    def _fetch(self, places: Any) -> Any:
        super()._fetch(places)
        return torch.Event(device="fake")


class NoTurns(Staging):
    """What is decoded is written over what is still copied."""

    def back(self, there: Any, decoded: Any) -> Any:
        self._sent = None
        return super().back(there, decoded)


class NoOrder(Staging):
    """Copies do not wait for the stream that computes."""

    def _fetch(self, places: Any) -> Any:
        self._current = lambda: self._stream  # type: ignore[method-assign]
        try:
            return super()._fetch(places)
        finally:
            del self._current  # type: ignore[method-assign]


class OtherStream(Staging):
    """What is decoded comes back on a stream for which the optimizer does not wait."""

    def back(self, there: Any, decoded: Any) -> Any:
        with self._stream:  # type: ignore[union-attr]
            return super().back(there, decoded)


class LetsGo(Staging):
    """The memory that is copied from is given back."""

    def _fetch(self, places: Any) -> Any:
        there = super()._fetch(places)
        for place in places:
            fetched = self._fetched[place]
            if fetched is not None:
                self._fetched[place] = (fetched[0], fetched[1], fetched[0])
        return there


MISTAKES = [(NoWait, COMPUTES), (NoTurns, LATE), (NoOrder, COMPUTES)]
MISTAKES += [(OtherStream, plan) for plan in (COMPUTES, LATE)]


@pytest.mark.parametrize(("mistake", "plan"), MISTAKES)
def test_a_mistake_of_it_is_found(mistake: Type[Staging], plan: List[int]) -> None:
    fake_device.settings("lazy", 0, False)
    found = trained("fake", plan, make=lambda parameters: staged(parameters, mistake))
    assert not same(found, trained("cpu", plan))


def mistaken(mistake: Type[Staging], plan: List[int]) -> None:
    trained("fake", plan, make=lambda parameters: staged(parameters, mistake))


@pytest.mark.parametrize(("mistake", "plan"), [(NoWait, COMPUTES), (NoTurns, LATE)])
def test_a_mistake_of_it_ends_the_process(
    mistake: Type[Staging], plan: List[int], tmp_path: Path
) -> None:
    ended = Apart(tmp_path / "process", mistaken, mistake, plan).end()
    assert ended.status == -signal.SIGSEGV
    assert "the host touches page-locked memory while a copy" in ended.stderr


# Waits and memory.


def nothing(*_: object) -> None:
    pass


def unit(take: Callable[[int, List[Any]], None] = nothing) -> Any:
    return Taken(take, nothing)


@pytest.mark.parametrize("early", [False, True], ids=["after", "early"])
def test_the_trainer_waits_for_no_unit(early: bool) -> None:
    trainer = Trainer("fake", torch.float32, staged, early)
    for step in range(3):
        trainer.step(step, 4)
    # Another thread does, for the device; the trainer waits for that one, in `settle`.
    assert trainer.waits == 0
    assert trainer.units == 3 * 4
    trainer.staging.close()


def parts_of(staging: Any, units: int, busy: threading.Event, told: List[Any]) -> None:
    """Computes units of one parameter, whose gradients are 1, 2, ..; `busy` holds up the first."""
    parameter = staging._parameters[0]

    def take(_: int, arrays: List[Any]) -> None:
        busy.wait()
        told.append(arrays[0].tolist())

    for number in range(units):
        staging.begin(Taken(take, lambda number=number: told.append(number)))
        parameter.grad = torch.full((3,), number + 1.0, device="fake")
        staging.collect()


def test_two_units_are_on_their_way_and_the_third_waits() -> None:
    staging = staged([torch.ones(3, device="fake", requires_grad=True)])
    busy = threading.Event()
    told: List[Any] = []
    before = fake_device.memory().pinned
    parts_of(staging, 2, busy, told)
    assert fake_device.memory().pinned > before
    third = threading.Thread(target=parts_of, args=(staging, 1, busy, told))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    assert told == [0]
    busy.set()
    third.join(30)
    assert not third.is_alive()
    staging.settle()
    assert told == [0, [1.0] * 3, 1, [2.0] * 3, 0, [1.0] * 3]
    staging.close()


def test_gradients_are_handed_over_while_the_backward_pass_goes_on() -> None:
    trainer = Trainer("fake", torch.float32, staged, True)
    trainer.step(0, 1)
    # One by one from the last, but for those in the middle that have none.
    assert trainer.taken == [(6, 7), (5, 6), (2, 5), (1, 2), (0, 1)]
    trainer.staging.close()


def test_it_takes_the_memory_of_one_gradient() -> None:
    parameters = [torch.ones(4096, device="fake", requires_grad=True) for _ in range(4)]
    before = fake_device.memory()
    staging = staged(parameters)
    found = fake_device.memory()
    assert found.pinned - before.pinned == 4 * 4 * 4096
    assert found.device == before.device
    del parameters
    del staging


# What users do.


@pytest.mark.parametrize("how", ["in place", "other", "none"])
def test_a_gradient_that_is_written_after_it_was_handed_over_is_handed_over_again(how: str) -> None:
    parameter = torch.ones(3, device="fake", requires_grad=True)
    staging = staged([parameter])
    told: List[Any] = []

    def take(first: int, arrays: List[Any]) -> None:
        told.append((first, [None if each is None else each.tolist() for each in arrays]))

    staging.begin(unit(take))
    parameter.grad = torch.full((3,), 2.0, device="fake")
    staging.out(0, 1)
    if how == "in place":
        parameter.grad.mul_(2)
    else:
        parameter.grad = parameter.grad * 2 if how == "other" else None
    assert staging.collect() == [how != "none"]
    staging.settle()
    assert told == [(0, [[2.0] * 3]), (0, [None if how == "none" else [4.0] * 3])]
    # The next unit begins anew.
    staging.begin(unit(take))
    parameter.grad = torch.full((3,), 5.0, device="fake")
    assert staging.collect() == [True]
    staging.settle()
    assert told[2:] == [(0, [[5.0] * 3])]
    staging.close()


def test_a_unit_that_is_given_up_leaves_its_memory_to_the_next() -> None:
    # Closed memory ends the process where a copy is written over.
    fake_device.settings("lazy", 0, True)
    parameters = [torch.ones(4096, device="fake", requires_grad=True) for _ in range(2)]
    staging = staged(parameters)
    told: List[Any] = []

    def take(first: int, arrays: List[Any]) -> None:
        told.extend((first, float(each.min()), float(each.max())) for each in arrays)

    before = fake_device.memory().pinned
    for number in (1.0, 2.0, 3.0):
        staging.begin(unit(take))
        for parameter in parameters:
            parameter.grad = torch.full((4096,), number, device="fake")
        staging.out(1, 2)
    assert staging.collect() == [True, True]
    staging.settle()
    assert told == [(1, 1.0, 1.0), (1, 2.0, 2.0), (1, 3.0, 3.0), (0, 3.0, 3.0)]
    assert fake_device.memory().pinned == before
    staging.close()


def converted(make: Type[Staging]) -> List[Any]:
    """What is handed over of gradients of another format and with other strides."""
    first = torch.ones(2, 3, device="fake", requires_grad=True)
    second = torch.ones(2, 3, device="fake", requires_grad=True)
    staging = staged([first, second], make)
    told: List[Any] = []
    first.grad = torch.arange(6.0, device="fake").view(3, 2).t()
    second.grad_dtype = None
    second.grad = torch.full((2, 3), 1.5, device="fake", dtype=torch.bfloat16)
    staging.begin(unit(lambda _, arrays: told.extend(each.tolist() for each in arrays)))
    staging.collect()
    staging.settle()
    return told


def test_gradients_of_another_format_and_of_other_strides() -> None:
    fake_device.settings("hasty")
    right = [[[0, 2, 4], [1, 3, 5]], [[1.5] * 3] * 2]
    assert converted(Staging) == right
    assert converted(LetsGo) != right


def test_what_handing_over_raises_is_raised_by_the_trainer() -> None:
    class Lost(Exception):
        pass

    def fails(first: int, arrays: List[Any]) -> None:
        raise Lost

    parameter = torch.ones(3, device="fake", requires_grad=True)
    staging = staged([parameter])
    parameter.grad = torch.ones(3, device="fake")
    staging.begin(unit(fails))
    staging.out(0, 1)
    staging.collect()
    with pytest.raises(Lost):
        staging.settle()
    # So does the next unit, if it comes first.
    staging.begin(unit(fails))
    staging.collect()
    deadline = time.monotonic() + 30
    while staging._handing._trouble is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    with pytest.raises(Lost):
        staging.begin(unit())
    staging.close()


# Failures of the device.


def test_an_error_of_the_device_is_raised_where_the_task_is_over() -> None:
    for early in (False, True):
        parameter = torch.ones(3, device="fake", requires_grad=True)
        staging = staged([parameter])
        fake_device.fail("illegal access")
        parameter.grad = torch.ones(3, device="fake")
        staging.begin(unit())
        if early:
            staging.out(0, 1)
        staging.collect()
        with pytest.raises(RuntimeError, match="illegal access"):
            staging.settle()
        staging.close()


@pytest.mark.parametrize("early", [False, True], ids=["after", "early"])
def test_a_signal_gets_through_a_kernel_that_hangs(early: bool) -> None:
    class Told(Exception):
        pass

    def tell(*_: object) -> None:
        raise Told

    parameter = torch.ones(3, device="fake", requires_grad=True)
    staging = staged([parameter])
    staging.begin(unit())
    fake_device.hang()
    parameter.grad = torch.ones(3, device="fake")
    if early:
        staging.out(0, 1)
    before = signal.signal(signal.SIGALRM, tell)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        staging.collect()
        with pytest.raises(Told):
            staging.settle()
    finally:
        signal.signal(signal.SIGALRM, before)
    staging.close()
    # Its thread does not wait for the device any more.
    deadline = time.monotonic() + 30
    while staging._handing._thread.is_alive():  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_its_thread_ends_with_it() -> None:
    parameter = torch.ones(3, device="fake", requires_grad=True)
    staging = staged([parameter])
    parameter.grad = torch.ones(3, device="fake")
    staging.begin(unit())
    staging.out(0, 1)
    staging.collect()
    staging.settle()
    thread: Any = staging._handing._thread
    assert isinstance(thread, threading.Thread)
    del staging
    thread.join(30)
    assert not thread.is_alive()


def test_memory_that_cannot_be_page_locked_is_told_and_done_without() -> None:
    before = fake_device.memory().pinned
    fake_device.limits(pinned=before + 4096)
    with pytest.warns(RuntimeWarning, match="^10244 bytes of the host's memory cannot be page-"):
        trainer = Trainer("fake", torch.float32, staged, True)
    for step, units in enumerate(LATE):
        trainer.step(step, units)
    assert same(trainer.bits(), trained("cpu", LATE))
    assert fake_device.memory().pinned <= before
    trainer.staging.close()


def test_who_hands_gradients_over_waits_for_all_streams_that_write_them() -> None:
    fake_device.settings("lazy", 0, False)
    parameters = [nn.Parameter(torch.zeros(5, device="fake")) for _ in range(3)]
    announcer = Announcer([Part(each) for each in parameters])
    streams = [torch.Stream(device="fake") for _ in range(3)]
    found: List[Any] = []

    def ready(first: int, end: int) -> None:
        found.extend(each.grad.cpu()[0].item() for each in parameters[first:end])  # type: ignore[union-attr]

    # What is written once in the first unit is handed over in the second.
    for _ in range(2):
        announcer.begin(ready)
        for place in (2, 1, 0):
            with streams[place]:
                parameters[place].grad = torch.full((5,), place + 1.0, device="fake")
                announcer._written(place)
        announcer.end()
    announcer.close()
    assert found == [1.0, 2.0, 3.0]


def test_a_device_without_streams_copies_while_the_trainer_waits(monkeypatch: Any) -> None:
    def none(**_: object) -> Any:
        raise NotImplementedError("no streams here\nat all")

    right = trained("cpu", LATE)
    monkeypatch.setattr(torch, "Stream", none)
    with pytest.warns(RuntimeWarning, match=r"fake has no streams or no .*\(no streams here\)"):
        trainer = Trainer("fake", torch.float32, staged, True)
    assert not trainer.early
    for step, units in enumerate(LATE):
        trainer.step(step, units)
    assert same(trainer.bits(), right)
