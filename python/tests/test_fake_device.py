"""The emulated device: it has the CPU's numbers, and finds what forgets to wait."""

from __future__ import annotations

import copy
import gc
import signal
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
torch = pytest.importorskip("torch")

import fake_device  # noqa: E402
from fake_device.apart import Apart  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)

# Every order in which the device may work.
ORDERS: List[Tuple[str, int]] = [
    ("lazy", 0),
    ("hasty", 0),
    ("eager", 0),
    *(("random", seed) for seed in range(3)),
]
# Some pages and a bit.
COUNT = 5000


@pytest.fixture(autouse=True)
def as_it_begins() -> Iterator[None]:
    with fake_device.alone():
        yield


def event() -> Any:
    """An event on the current stream."""
    found = torch.Event(device="fake")
    found.record(torch.accelerator.current_stream())
    return found


# Its numbers.


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 8)
        self.groups = nn.GroupNorm(2, 8)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, 13)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        x = x + self.dropout(F.gelu(self.hidden(self.norm(x))))
        return self.head(self.groups(x.flatten(0, 1)))


def trained(model: nn.Module, device: str, optimizer: Callable[..., Any]) -> Tuple[Any, Any]:
    """The parameters after some steps, and what the device did in the last one."""
    model = copy.deepcopy(model).to(device)
    optim = optimizer(model.parameters())
    generator = torch.Generator().manual_seed(5)
    before = after = fake_device.counts()
    torch.manual_seed(7)
    for _ in range(3):
        before = fake_device.counts()
        tokens = torch.randint(0, 13, (2, 7), generator=generator)
        x, y = tokens[:, :-1].to(device), tokens[:, 1:].to(device)
        F.cross_entropy(model(x).float(), y.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optim.step()
        optim.zero_grad()
        after = fake_device.counts()
    did = fake_device.Counts(*(late - early for early, late in zip(before, after)))
    return torch.cat([each.detach().cpu().flatten() for each in model.parameters()]), did


# PyTorch takes foreach on accelerators, which rounds otherwise in bfloat16.
OPTIMIZERS: Dict[str, Callable[..., Any]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.1, 0.9, nesterov=True, foreach=True),
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.01, foreach=False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_training_has_the_bits_of_the_cpu_in_any_order(optimizer: str, dtype: Any) -> None:
    torch.manual_seed(3)
    model = Model().to(dtype)
    right, _ = trained(model, "cpu", OPTIMIZERS[optimizer])
    assert torch.isfinite(right).all()
    for order in ORDERS:
        fake_device.settings(*order)
        found, did = trained(model, "fake", OPTIMIZERS[optimizer])
        assert torch.equal(found, right), order
        assert did.late > 50 and did.at_once == 0, "every operation is late"
        assert did.waits == 0, "a step without .item() does not wait"


def test_the_device_draws_its_own_numbers() -> None:
    def drawn(seed: int) -> Any:
        torch.fake.manual_seed_all(seed)
        torch.rand(3)  # the CPU's generator is another
        return torch.rand(4, device="fake").cpu()

    torch.manual_seed(1)
    assert torch.equal(drawn(2), torch.rand(4, generator=torch.Generator().manual_seed(2)))
    assert not torch.equal(drawn(2), drawn(3))
    state = torch.fake.get_rng_state()
    first = torch.rand(4, device="fake").cpu()
    torch.fake.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="fake").cpu(), first)


def test_it_is_pytorchs_accelerator() -> None:
    assert torch.accelerator.current_accelerator().type == "fake"
    own = torch.Stream(device="fake")
    with own:
        assert torch.accelerator.current_stream() == own
    assert torch.accelerator.current_stream() != own
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.empty(3).is_pinned()


def test_tensors_of_two_devices_do_not_meet() -> None:
    with pytest.raises(RuntimeError, match="a tensor is on cpu where others are"):
        torch.ones(3, 3, device="fake") @ torch.ones(3, 3)
    assert (torch.ones(3, device="fake") + torch.tensor(1.0)).sum().item() == 6


# Waiting.


def test_nothing_is_done_before_somebody_waits() -> None:
    before = fake_device.counts()
    x = torch.ones(COUNT, device="fake") * 3
    done = event()
    assert not done.query()
    assert fake_device.counts().waits == before.waits
    assert x.sum().item() == 3 * COUNT
    assert done.query()
    assert fake_device.counts().waits == before.waits + 1


def test_who_asks_an_event_again_and_again_has_waited_once() -> None:
    torch.ones(3, device="fake")
    before, done = fake_device.counts(), event()
    asked = 1
    while not done.query():
        asked += 1
    assert asked > 1
    assert fake_device.counts().waits == before.waits + 1


def test_waits_are_counted_for_each_thread() -> None:
    before = fake_device.counts().waits
    others: List[int] = []

    def wait() -> None:
        for _ in range(3):
            torch.ones(3, device="fake").cpu()
        others.append(fake_device.counts().waits)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert others == [3]
    assert fake_device.counts().waits == before


def test_what_fails_on_the_device_is_told_whoever_waits_next() -> None:
    fake_device.fail("illegal access")
    x = torch.ones(3, device="fake")
    with pytest.raises(RuntimeError, match="the emulated device has failed: illegal access"):
        x.cpu()
    wrong = F.embedding(torch.tensor([7], device="fake"), torch.ones(3, 2, device="fake"))
    with pytest.raises(RuntimeError, match="index out of range"):
        wrong.cpu()
    assert x.sum().item() == 3


def test_a_kernel_that_hangs_leaves_the_host_its_events() -> None:
    fake_device.hang()
    x = torch.ones(3, device="fake")
    done = event()
    assert not any(done.query() for _ in range(10))
    fake_device.release()
    done.synchronize()
    assert x.sum().item() == 3


# Memory.


def test_memory_that_nobody_has_written_is_poison() -> None:
    assert torch.empty(COUNT, device="fake").isnan().all().item()
    assert torch.empty(COUNT, pin_memory=True).isnan().all().item()
    x = torch.ones(COUNT, device="fake")
    where = x.data_ptr()
    del x
    again = torch.empty(COUNT, device="fake")
    assert again.data_ptr() == where, "it is its stream's again at once"
    assert again.isnan().all().item()


def test_memory_that_another_stream_uses_is_kept_from_its_own() -> None:
    own = torch.Stream(device="fake")
    x = torch.ones(COUNT, device="fake")
    where = x.data_ptr()
    with own:
        x.sum()
    x.record_stream(own)
    del x
    assert torch.empty(COUNT, device="fake").data_ptr() != where
    own.synchronize()
    assert torch.empty(COUNT, device="fake").data_ptr() == where


def test_memory_is_counted_and_ends() -> None:
    before = fake_device.memory()
    page, pages = 4096, 8192
    x = torch.empty(COUNT // 4, device="fake")
    host = torch.empty(page, dtype=torch.uint8, pin_memory=True)
    now = fake_device.memory()
    assert (now.device, now.pinned) == (before.device + pages, before.pinned + page)
    del x, host
    assert fake_device.memory() == (before.device, now.device, before.pinned, now.pinned)
    fake_device.limits(before.device + page, before.pinned + page)
    with pytest.raises(RuntimeError, match="the emulated device is out of memory"):
        torch.empty(page + 1, dtype=torch.uint8, device="fake")
    with pytest.raises(RuntimeError, match="refuses to page-lock 4097 bytes"):
        torch.empty(page + 1, dtype=torch.uint8, pin_memory=True)


# Programs that are right, and the same with a mistake.


def gradient_out(*, wait: bool = True, order: bool = True, record: bool = True) -> Any:
    """A gradient comes to the host on a stream of its own; it is 4 everywhere.

    Mistakes: the host reads before the event; the copy does not wait for the backward pass; the
    gradient's memory is used again under the copy.
    """
    weight = torch.full((COUNT,), 2.0, device="fake", requires_grad=True)
    host = torch.empty(COUNT, pin_memory=True)
    own = torch.Stream(device="fake")
    (weight * weight).sum().backward()
    if order:
        own.wait_event(event())
    with own:
        host.copy_(weight.grad, non_blocking=True)
        there = event()
    if record:
        weight.grad.record_stream(own)
    weight.grad = None
    torch.full((COUNT,), 7.0, device="fake")
    if wait:
        there.synchronize()
    return host.tolist()


def gradients_in(*, wait: bool = True, order: bool = True) -> Any:
    """What is decoded comes to the device by one page-locked buffer, and is subtracted from 4; the
    host does nothing else between, as one that is late. It is 1 everywhere.

    Mistakes: the buffer is written again before its copy is over; the optimizer does not wait for
    the stream of the copies.
    """
    weight = torch.full((COUNT,), 4.0, device="fake")
    host = torch.empty(COUNT, pin_memory=True)
    own = torch.Stream(device="fake")
    sent = event()
    for number in (1.0, 2.0):
        if wait:
            sent.synchronize()
        host.numpy()[:] = number
        with own:
            gradient = torch.empty(COUNT, device="fake")
            gradient.copy_(host, non_blocking=True)
            sent = event()
        if order:
            torch.accelerator.current_stream().wait_event(sent)
        gradient.record_stream(torch.accelerator.current_stream())
        weight.sub_(gradient)
    return weight.tolist()


PROGRAMS: List[Tuple[Callable[..., Any], float]] = [(gradient_out, 4.0), (gradients_in, 1.0)]
# Mistakes, and the orders that must find each where page-locked memory is not closed.
MISTAKES = [
    (gradient_out, 4.0, "wait", ["lazy"]),
    (gradient_out, 4.0, "order", ["lazy"]),
    (gradient_out, 4.0, "record", ["hasty"]),
    (gradients_in, 1.0, "wait", ["lazy"]),
    (gradients_in, 1.0, "order", ["lazy"]),
]


@pytest.mark.parametrize("protect", [False, True])
@pytest.mark.parametrize(("program", "right"), PROGRAMS, ids=["out", "in"])
def test_a_right_program_is_right_in_any_order(
    program: Callable[..., Any], right: float, protect: bool
) -> None:
    for policy, seed in ORDERS:
        fake_device.settings(policy, seed, protect)
        assert program() == [right] * COUNT, (policy, seed)


@pytest.mark.parametrize(
    ("program", "right", "mistake", "orders"),
    MISTAKES,
    ids=[f"{program.__name__}-{mistake}" for program, _, mistake, _ in MISTAKES],
)
def test_a_mistake_gives_other_numbers(
    program: Callable[..., Any], right: float, mistake: str, orders: List[str]
) -> None:
    for policy in orders:
        fake_device.settings(policy, 0, False)
        found = program(**{mistake: False})
        assert found != [right] * COUNT, policy


@pytest.mark.parametrize("mistake", ["order", "record"])
def test_a_random_order_finds_mistakes_and_can_be_repeated(mistake: str) -> None:
    def found(seed: int) -> str:
        fake_device.settings("random", seed, False)
        return str(gradient_out(**{mistake: False}))

    # What the collector frees is work for the device, too.
    gc.collect()
    gc.disable()
    try:
        results = [found(seed) for seed in range(30)]
        again = [found(seed) for seed in range(30)]
    finally:
        gc.enable()
    assert any(result != str([4.0] * COUNT) for result in results)
    assert again == results


def reads_device_memory() -> None:
    import ctypes

    ctypes.string_at(torch.ones(3, device="fake").data_ptr(), 4)


def reads_before_the_event() -> None:
    gradient_out(wait=False)


def writes_under_a_copy() -> None:
    gradients_in(wait=False)


CLOSED = "the host touches page-locked memory while a copy from or to it is on its way\n"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (reads_device_memory, "the host touches memory of the device\n"),
        (reads_before_the_event, CLOSED),
        (writes_under_a_copy, CLOSED),
    ],
)
def test_memory_that_is_closed_ends_the_process(
    mistake: Callable[[], None], said: str, tmp_path: Path
) -> None:
    ended = Apart(tmp_path / "process", mistake).end()
    assert (ended.status, ended.stderr) == (-signal.SIGSEGV, said)


def reads_what_is_sent() -> None:
    host = torch.ones(COUNT, pin_memory=True)
    x = torch.empty(COUNT, device="fake").copy_(host, non_blocking=True)
    assert host.sum() == COUNT, "reading what the device reads is right"
    half = torch.empty(COUNT, pin_memory=True)
    half[: COUNT // 2].copy_(x[: COUNT // 2], non_blocking=True)
    half[-1] = 1.0  # another page is open


def test_memory_is_closed_no_further_than_it_must_be(tmp_path: Path) -> None:
    assert Apart(tmp_path / "process", reads_what_is_sent).end() == (0, "", None)
