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
PAGE = 4096


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
    page, pages = PAGE, 2 * PAGE
    x = torch.empty(COUNT // 4, device="fake")
    host = torch.empty(page, dtype=torch.uint8, pin_memory=True)
    now = fake_device.memory()
    assert (now.device, now.pinned) == (before.device + pages, before.pinned + page)
    del x, host
    assert fake_device.memory() == (before.device, now.device, before.pinned, now.pinned)
    fake_device.limits(before.device + page, before.pinned + page)
    with pytest.raises(torch.OutOfMemoryError, match="the emulated device is out of memory"):
        torch.empty(page + 1, dtype=torch.uint8, device="fake")
    with pytest.raises(RuntimeError, match="refuses to page-lock 4097 bytes"):
        torch.empty(page + 1, dtype=torch.uint8, pin_memory=True)


def test_one_allocation_is_refused() -> None:
    fake_device.refuse(2, least=4 * COUNT)
    small, first = (torch.ones(count, device="fake") for count in (3, COUNT))
    with pytest.raises(torch.OutOfMemoryError, match="the emulated device is out of memory"):
        first * 2
    assert (first * 2).sum() + small.sum() == 2 * COUNT + 3, "it is refused once"
    fake_device.refuse(1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.add(first, first, out=torch.empty(0, device="fake"))
    fake_device.refuse(1)
    fake_device.refuse(0)
    torch.empty(COUNT, device="fake")


# Memory of the host's own that is page-locked.


class Own:
    """Some page-locked memory of the host's own, filled with `number`: `pages` of them and 100
    bytes, of which 60 are in the page before and 40 in the one after."""

    def __init__(self, number: float = 1.0, pages: int = 5) -> None:
        import numpy as np

        # An allocation that is freed when it is dropped.
        memory = np.full((pages + 2) * PAGE + 100, 77, np.uint8)
        start = PAGE - 60 + -memory.ctypes.data % PAGE
        self.bytes = memory
        self.inside = memory[start : start + pages * PAGE + 100].view(np.float32)
        self.inside[:] = number
        self.address, self.size = self.inside.ctypes.data, self.inside.nbytes
        self.tensor = torch.from_numpy(self.inside)
        assert torch.fake.page_lock(self.address, self.size)

    def unlock(self) -> None:
        torch.fake.page_unlock(self.address)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("fake-locked")


@pytest.mark.parametrize("protect", [False, True])
def test_copies_from_and_to_locked_memory_are_late(protect: bool) -> None:
    fake_device.settings(protect=protect)
    own, other = Own(), Own(3.0)
    there = torch.empty(own.tensor.numel(), device="fake")
    before = fake_device.counts()
    there.copy_(own.tensor, non_blocking=True)
    other.tensor.copy_(there * 2, non_blocking=True)
    done = event()
    assert fake_device.counts().waits == before.waits
    # The pages at the ends are open, as others have memory in them.
    assert other.inside[0] == other.inside[-1] == 3.0
    assert own.inside[PAGE] == 1.0, "the device only reads it"
    done.synchronize()
    assert (other.inside == 2.0).all() and (own.inside == 1.0).all()
    other.inside[:] = own.inside[:] = 5.0
    there.copy_(own.tensor)
    assert (there == 5.0).all().item()
    for each in (own, other):
        outside = each.bytes.nbytes - each.size
        assert (each.bytes == 77).sum() == outside, "nothing else is written"
        each.unlock()


def test_parts_of_locked_memory_are_copied() -> None:
    own = Own()
    host = own.tensor
    there = torch.arange(host.numel(), device="fake")
    right = there.cpu().float()
    # The ends of the parts are in pages at the ends, in whole ones, and where they meet.
    for cuts in ([10], [15, 16], [700, 5 * 1024 + 15, 5 * 1024 + 20]):
        host.zero_()
        parts = zip(host.tensor_split(cuts), there.tensor_split(cuts))
        for part, wanted in parts:
            part.copy_(wanted, non_blocking=True)
        event().synchronize()
        assert torch.equal(host, right), "int64 on the device, float32 here"
    before = fake_device.counts().waits
    host[::2].copy_(there[::2] * 2, non_blocking=True)
    assert fake_device.counts().waits == before + 1, "what has gaps is not late"
    assert torch.equal(host[::2], right[::2] * 2) and torch.equal(host[1::2], right[1::2])
    host.view(-1, 3).t().copy_(there.view(3, -1), non_blocking=True)
    back = torch.empty(3, host.numel() // 3, device="fake")
    back.copy_(host.view(-1, 3).t(), non_blocking=True)
    assert torch.equal(back.cpu().long(), there.view(3, -1).cpu())
    own.unlock()


def test_a_copy_of_memory_that_is_locked_in_part_is_refused() -> None:
    own = Own()
    wide = torch.from_numpy(own.bytes)
    for there in (wide[: -PAGE // 2], wide[PAGE // 2 :]):
        with pytest.raises(RuntimeError, match="memory of which a part is page-locked"):
            there.to("fake")
    own.unlock()
    assert wide.to("fake").sum().item() == wide.sum()


def test_locked_memory_is_pinned_and_counted() -> None:
    before, locked = fake_device.memory().pinned, fake_device.locked()
    own, size = Own(), 6 * PAGE
    now = fake_device.memory()
    assert (now.pinned, now.pinned_peak) == (before + size, before + size)
    assert fake_device.locked() == locked + 1
    assert all(own.tensor[at:].is_pinned() for at in (0, 14, 15, PAGE, -1))
    assert not torch.from_numpy(own.bytes).is_pinned()
    assert not torch.from_numpy(own.bytes[-1:]).is_pinned()
    for address in (own.address, own.address + 1, own.address + own.size - 1, own.address - 1):
        with pytest.raises(RuntimeError, match="to be page-locked that is page-locked already"):
            torch.fake.page_lock(address, 2)
    with pytest.raises(RuntimeError, match="to be unlocked that is not page-locked"):
        torch.fake.page_unlock(own.address + 4)
    own.unlock()
    assert fake_device.memory() == (now.device, now.device, before, before + size)
    assert fake_device.locked() == locked
    fake_device.limits(pinned=before + size - 1)
    assert not torch.fake.page_lock(own.address, own.size)
    assert not own.tensor.is_pinned() and fake_device.locked() == locked
    fake_device.limits(pinned=before + size)
    assert torch.fake.page_lock(own.address, own.size)
    own.unlock()


def test_no_memory_is_not_locked() -> None:
    locked = fake_device.locked()
    # The first pages are never a program's.
    with pytest.raises(RuntimeError, match="memory that cannot be page-locked"):
        torch.fake.page_lock(PAGE, 4 * PAGE)
    with pytest.raises(RuntimeError, match="no bytes are to be page-locked"):
        torch.fake.page_lock(PAGE, 0)
    assert fake_device.locked() == locked and mappings() == 0


def test_less_than_a_page_is_locked() -> None:
    own = Own(pages=0)
    assert mappings() == 0
    there = torch.full((25,), 4.0, device="fake")
    own.tensor.copy_(there, non_blocking=True)
    assert (own.inside == 1.0).all(), "it is late"
    own.unlock()
    assert (own.inside == 4.0).all(), "to unlock it is to wait"


def test_unlocked_memory_is_the_hosts_again() -> None:
    own, other = Own(), torch.Stream(device="fake")
    own.tensor.copy_(torch.full((own.tensor.numel(),), 4.0, device="fake"), non_blocking=True)
    with other:
        torch.ones(3, device="fake")
        done = event()
    own.unlock()
    assert not done.query(), "only copies from and to it are waited for"
    assert (own.inside == 4.0).all() and mappings() == 0
    own.inside[:] = 5.0
    there = own.tensor.to("fake", non_blocking=True)
    own.inside[:] = 6.0
    assert (there == 5.0).all().item(), "pageable memory is read at once"
    del own
    gc.collect()
    again = Own()
    assert (again.inside == 1.0).all()
    again.unlock()


def test_threads_read_what_is_locked_and_unlocked() -> None:
    own, over = Own(pages=500), threading.Event()
    wrong: List[Any] = []

    def read() -> None:
        while not over.is_set():
            if (own.inside != 1.0).any():
                wrong.append(own.inside.copy())

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(20):
        own.unlock()
        assert torch.fake.page_lock(own.address, own.size)
    over.set()
    thread.join()
    own.unlock()
    assert not wrong


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


def reads_locked_memory_before_the_event() -> None:
    own = Own()
    own.tensor.copy_(torch.ones(own.tensor.numel(), device="fake"), non_blocking=True)
    own.inside.sum()


def writes_locked_memory_under_a_copy() -> None:
    own = Own()
    own.tensor.to("fake", non_blocking=True)
    own.inside[:] = 2.0


CLOSED = "the host touches page-locked memory while a copy from or to it is on its way\n"


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (reads_device_memory, "the host touches memory of the device\n"),
        (reads_before_the_event, CLOSED),
        (writes_under_a_copy, CLOSED),
        (reads_locked_memory_before_the_event, CLOSED),
        (writes_locked_memory_under_a_copy, CLOSED),
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


def uses_locked_memory_beside_a_copy() -> None:
    own = Own()
    there = torch.ones(own.tensor.numel(), device="fake")
    # It takes the first page in part, and the second to its middle.
    own.tensor[:500].copy_(there[:500], non_blocking=True)
    own.inside[:] = 2.0
    own.tensor[500:].copy_(there[500:], non_blocking=True)
    own.inside[: 15 + 1024] = 2.0
    own.inside[15 + 5 * 1024 :] = 2.0
    own.unlock()
    own.inside[:] = 2.0


@pytest.mark.parametrize("program", [reads_what_is_sent, uses_locked_memory_beside_a_copy])
def test_memory_is_closed_no_further_than_it_must_be(
    program: Callable[[], None], tmp_path: Path
) -> None:
    assert Apart(tmp_path / "process", program).end() == (0, "", None)
