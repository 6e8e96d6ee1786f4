"""Sums on the emulated device where its memory is at an end, and what a run leaves behind."""

from __future__ import annotations

import gc
from typing import Any, Iterator, List

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
torch = pytest.importorskip("torch")

import codedgrad.torch as coded  # noqa: E402
import fake_device  # noqa: E402
import test_sums  # noqa: E402
from codedgrad._core.parting import How  # noqa: E402
from codedgrad._torch import announcer  # noqa: E402
from codedgrad._torch.staging import Staging  # noqa: E402
from codedgrad._torch.sums import Summing, Tree  # noqa: E402
from test_sums import SMALL, Adding, run_of, small, trained  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)


@pytest.fixture(autouse=True)
def as_it_begins(monkeypatch: Any) -> Iterator[None]:
    # Every parameter is a part.
    monkeypatch.setattr(announcer, "_PART_OF_ACCELERATOR", 1)
    with fake_device.alone():
        yield


@pytest.mark.parametrize(
    ("nth", "overlap"), [(1, True), (2, True), (5, True), (5, False), (8, False)]
)
def test_without_memory_for_a_sum_the_host_adds_up(nth: int, overlap: bool) -> None:
    def before(step: Any, micro: Any) -> None:
        if step.index == 1 and micro.unit == 0:
            fake_device.refuse(nth, 4 * SMALL)

    transfers = []

    def after(step: Any) -> None:
        transfers.append(type(step._session.arrays._transfer))

    with pytest.warns(RuntimeWarning, match=f"fake has no {4 * SMALL} bytes left") as warned:
        found = run_of(small("fake"), before, after, overlap=overlap, steps=4)
    # Where the run is iterated over.
    assert [each.filename for each in warned] == [test_sums.__file__]
    assert found.bits == run_of(small("cpu"), steps=4).bits
    assert transfers == [Summing, Summing, Staging, Staging]
    assert found.report["device"]["out"]["bytes"] > 2 * 8 * 4 * SMALL
    fake_device.refuse(0)


@pytest.mark.parametrize("part", range(4))
def test_without_memory_for_a_part_of_the_last_sum_the_host_adds_up(
    part: int, monkeypatch: Any
) -> None:
    total, asked = Tree.total, []

    def scarce(self: Tree, first: int, *args: Any) -> Any:
        asked.append(first)
        if len(asked) == 5 + part:
            raise torch.OutOfMemoryError("no more")
        return total(self, first, *args)

    right = run_of(small("cpu"), steps=4).bits
    monkeypatch.setattr(Tree, "total", scarce)
    with pytest.warns(RuntimeWarning, match=f"fake has no {4 * SMALL} bytes left") as warned:
        found = run_of(small("fake"), steps=4)
    assert len(warned) == 1
    assert found.bits == right
    # From the second task on each parameter's goes out by itself.
    assert asked[:4] == [3, 2, 1, 0]


def test_a_run_that_is_over_leaves_nothing_page_locked() -> None:
    gc.collect()
    before = fake_device.memory().pinned
    run_of(small("fake"))
    gc.collect()
    assert fake_device.locked() == 0
    assert fake_device.memory().pinned == before


class Spoils(torch.autograd.Function):
    """A backward pass that leaves a number which is none."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient.index_fill(0, torch.tensor([0], device=gradient.device), float("nan"))


def cleaned(device: str) -> Any:
    """A run whose script makes gradients finite."""
    model = small(device)

    def loss(model: Any, micro: Any) -> Any:
        x = torch.randn(2, 32, generator=micro.generator()).to(device)
        Spoils.apply(model(x)).square().mean().backward()
        for each in model.parameters():
            each.grad.nan_to_num_(0.5)
        return torch.zeros((), requires_grad=True)

    return run_of(model, loss=loss)


def test_gradients_that_the_script_makes_finite_count() -> None:
    right, found = cleaned("cpu"), cleaned("fake")
    assert right.report["skipped"] == found.report["skipped"] == 0
    assert right.bits == found.bits


def test_no_partial_sum_is_kept_while_the_optimizer_steps() -> None:
    trainer = Adding()
    trainer.step(0, 1)
    before = fake_device.memory().device
    trainer.step(1, 4)
    assert fake_device.memory().device <= before
    trained(trainer, [])


def test_what_is_missing_is_zero_without_a_sign() -> None:
    part = torch.zeros(3)
    tree = Tree([part])
    tree.add(0, [None], -1.0)
    found = tree.total(0, 1, [torch.tensor([-0.0, 1.0, 2.0])], 1.0)
    assert not torch.signbit(found).any()


def test_some_memory_that_is_not_page_locked_is_told_once() -> None:
    fake_device.limits(pinned=fake_device.memory().pinned + 4 * 4096)
    with pytest.warns(RuntimeWarning, match="cannot be page-locked for fake") as warned:
        run_of(small("fake"))
    assert len(warned) == 1


class Halves(torch.nn.Module):
    """Two parts, of which a device computes one on a stream of its own."""

    def __init__(self, device: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.halves = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(2)]).to(device)
        self.stream = None if device == "cpu" else torch.Stream(device=device)

    def forward(self, x: Any) -> Any:
        first, second = self.halves
        if self.stream is None:
            return first(x).square().mean() + second(x).square().mean()
        current = torch.accelerator.current_stream()
        found = first(x).square().mean()
        self.stream.wait_stream(current)
        with self.stream:
            other = second(x).square().mean()
        current.wait_stream(self.stream)
        return found + other


def test_parts_of_a_backward_pass_may_be_on_different_streams() -> None:
    # Of the current stream, where the other one still reads them when they are not needed any more.
    kept: List[Any] = []

    def loss(model: Any, micro: Any) -> Any:
        device = next(model.parameters()).device
        kept.append(torch.randn(2, 64, generator=micro.generator()).to(device))
        return model(kept[-1])

    right = run_of(Halves("cpu"), loss=loss)
    for seed in range(12):
        fake_device.settings("random", seed, False)
        found = run_of(Halves("fake"), loss=loss)
        assert found.report["skipped"] == 0, seed
        assert found.bits == right.bits, seed


def test_a_run_that_is_not_closed_leaves_nothing_page_locked() -> None:
    model = small("fake")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in coded.join(model, optimizer, units=2, steps=3):
        for micro in step:
            model(torch.randn(2, 32, generator=micro.generator()).to("fake")).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    del model, optimizer, step, micro
    gc.collect()
    assert fake_device.locked() == 0


@pytest.mark.parametrize("staging", ["device", "host"])
def test_a_run_that_is_closed_within_a_micro_batch_says_so(staging: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("CODEDGRAD_STAGING", staging)

    def closes(step: Any, micro: Any) -> None:
        if (step.index, micro.unit) == (1, 1):
            step._session.parting.part("closed", How.FOR_GOOD)

    with pytest.raises(ConnectionError, match="this worker has left the run"):
        run_of(small("fake"), closes)
