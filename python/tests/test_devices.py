"""Runs of workers whose models are on the emulated device: the bits of the CPU."""

from __future__ import annotations

import math
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
torch = pytest.importorskip("torch")

import codedgrad.torch as coded  # noqa: E402
import fake_device  # noqa: E402
from codedgrad import _torch_overlap, loop  # noqa: E402
from codedgrad._torch_staging import Staging  # noqa: E402
from fake_device.apart import LIMIT_SECONDS, Apart  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)

UNITS = 4
STEPS = 6


@pytest.fixture(autouse=True)
def as_it_begins(monkeypatch: Any) -> Iterator[None]:
    # Every parameter is a part.
    monkeypatch.setattr(_torch_overlap, "_PART_OF_ACCELERATOR", 1)
    with fake_device.alone():
        yield


class Model(nn.Module):
    """A small language model's parts: embedding, norm, dropout, tied head; one matrix is a page."""

    def __init__(self, dtype: Any, device: str):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(13, 32)
        self.norm = nn.LayerNorm(32)
        self.hidden = nn.Linear(32, 32)
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(32, 13, bias=False)
        self.register_buffer("places", torch.arange(5))
        self.to(dtype).to(device)
        # Moving a model to a device that PyTorch does not have itself unties what was tied.
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens) + self.places[:, None].to(self.norm.weight.dtype) / 9
        return self.head(x + self.dropout(F.gelu(self.hidden(self.norm(x)))))


class Adapted(nn.Module):
    """A frozen model with a trained correction of few numbers."""

    def __init__(self, dtype: Any, device: str):
        super().__init__()
        self.base = Model(dtype, "cpu").requires_grad_(False)
        self.down = nn.Parameter(torch.randn(32, 4, dtype=dtype) / 9)
        self.up = nn.Parameter(torch.zeros(4, 13, dtype=dtype))
        self.to(device)
        self.base.head.weight = self.base.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.base(tokens) + self.base.embedding(tokens) @ self.down @ self.up


def loss_of(model: Any, micro: Any, device: str) -> Any:
    tokens = torch.randint(0, 13, (4, 6), generator=micro.generator())
    logits = model(tokens[:, :-1].to(device))
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten().to(device))


def bits(model: Any) -> List[bytes]:
    return [each.detach().cpu().view(torch.uint8).numpy().tobytes() for each in model.parameters()]


def train(
    device: str,
    dtype: str = "float32",
    where: Optional[Dict[str, Any]] = None,
    *,
    late_until: Optional[Path] = None,
    reached: Optional[Path] = None,
    waits_for: Optional[Path] = None,
    dies: bool = False,
    joins: Optional[Path] = None,
    scaler: Optional[coded.GradScaler] = None,
    spoiled: int = -1,
    make: Callable[..., Any] = Model,
    backend: Optional[str] = None,
    **more: Any,
) -> Dict[str, Any]:
    """One worker, which makes `joins` when it has joined. It comes with its first unit only when
    `late_until` is there, or is killed in it; in the fourth step it makes `reached`, and goes on
    when `waits_for` is there."""
    model = make(getattr(torch, dtype), device)
    called = model if backend is None else torch.compile(model, backend=backend)
    # As an accelerator's, which rounds otherwise in bfloat16.
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 5))
    state: Dict[str, Any] = {"scheduler": scheduler}
    if scaler is not None:
        state["scaler"] = scaler
    more = {"verify": 0, **(where or {}), **more}
    run = coded.join(called, optimizer, units=UNITS, steps=STEPS, state=state, **more)
    if joins is not None:
        joins.touch()
    units, losses = 0, []
    with run:
        for step in run:
            for micro in step:
                if late_until is not None and units == 0:
                    wait_for(late_until)
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                units += 1
                loss = loss_of(called, micro, device)
                if step.index == spoiled:
                    loss = loss * math.inf
                (loss if scaler is None else scaler.scale(loss)).backward()
                micro.report(loss)
            if reached is not None and step.index == 3:
                reached.touch()
                if waits_for is not None:
                    wait_for(waits_for)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(step.totals)
        report = run.report()
    return {"bits": bits(model), "losses": losses, "report": report}


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} does not come"
        time.sleep(0.002)


def started(folder: Path, order: Tuple[str, int, bool], *args: Any, **more: Any) -> Apart:
    """A worker in a process of its own."""
    return Apart(folder, _work, order, args, more)


def _work(order: Tuple[str, int, bool], args: Any, more: Dict[str, Any]) -> Any:
    _torch_overlap._PART_OF_ACCELERATOR = 1
    fake_device.settings(*order)
    return train(*args, **more)


@contextmanager
def coordinator(scheme: str, workers: int, **more: Any) -> Iterator[Any]:
    length = coded.length(Model(torch.float32, "cpu"))
    more.setdefault("max_wait", LIMIT_SECONDS)
    with loop.serve(
        scheme, workers=workers, units=UNITS, steps=STEPS, length=length, **more
    ) as found:
        yield found


def place(of: Any, worker: int) -> Dict[str, Any]:
    return {"address": of.address, "token": of.token, "worker": worker}


ORDERS = [("lazy", 0, True), ("random", 1, False)]
IN_ORDER = pytest.mark.parametrize("order", ORDERS, ids=["lazy", "random"])
# What is wrong gives other numbers only where memory is not closed.
LATE = pytest.mark.parametrize(
    "order", [*ORDERS, ("lazy", 0, False)], ids=["lazy", "random", "open"]
)
FORMATS = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@pytest.mark.parametrize("overlap", [False, True], ids=["after", "overlap"])
@FORMATS
def test_alone_it_has_the_bits_of_the_cpu(dtype: str, overlap: bool, monkeypatch: Any) -> None:
    early: List[Tuple[int, int]] = []
    out = Staging.out

    def watched(self: Staging, first: int, end: int, hand_over: Any) -> None:
        early.append((first, end))
        out(self, first, end, hand_over)

    monkeypatch.setattr(Staging, "out", watched)
    right = train("cpu", dtype)
    for order in [("hasty", 0, False), *ORDERS]:
        fake_device.settings(*order)
        found = train("fake", dtype, overlap=overlap)
        assert found["bits"] == right["bits"], order
        assert found["losses"] == right["losses"], order
    # From the second unit on gradients are handed over as they become final.
    units = 3 * (STEPS * UNITS - 1) if overlap else 0
    assert [first for first, _ in early].count(0) == units
    assert [end for _, end in early].count(5) == units
    assert len(early) >= 3 * units


@IN_ORDER
@FORMATS
def test_workers_have_the_bits_of_the_cpu(
    dtype: str, order: Tuple[str, int, bool], tmp_path: Path
) -> None:
    right = train("cpu", dtype)["bits"]
    with coordinator("uncoded", 2) as run:
        workers = [
            started(tmp_path / str(k), order, "fake", dtype, place(run, k)) for k in range(2)
        ]
        found = [worker.result() for worker in workers]
    assert [each["bits"] for each in found] == [right] * 2
    assert found[0]["losses"] == found[1]["losses"]


@LATE
@FORMATS
def test_a_late_worker_has_the_bits_of_the_cpu(
    dtype: str, order: Tuple[str, int, bool], tmp_path: Path
) -> None:
    right = train("cpu", dtype)["bits"]
    reached = tmp_path / "reached"
    with coordinator("groups:s=1", 2) as run:
        workers = [
            started(tmp_path / "0", order, "fake", dtype, place(run, 0), reached=reached),
            started(tmp_path / "1", order, "fake", dtype, place(run, 1), late_until=reached),
        ]
        found = [worker.result() for worker in workers]
    assert [each["bits"] for each in found] == [right] * 2
    # It found steps decided one after the other, and computed nothing between.
    assert found[1]["report"]["abandoned"] >= 1
    assert found[1]["report"]["applied"] == STEPS


def test_a_worker_that_is_killed_takes_over_the_others_state(tmp_path: Path) -> None:
    dtype = "bfloat16"
    right = train("cpu", dtype)["bits"]
    reached, back = tmp_path / "reached", tmp_path / "back"
    order, more = ORDERS[0], {"verify": 1}
    with coordinator("groups:s=1", 2, log_steps=1) as run:
        killed = started(tmp_path / "1", order, "fake", dtype, place(run, 1), dies=True, **more)
        other = started(
            tmp_path / "0",
            order,
            "fake",
            dtype,
            place(run, 0),
            reached=reached,
            waits_for=back,
            **more,
        )
        assert killed.end().status == -signal.SIGKILL
        wait_for(reached)
        again = started(tmp_path / "2", order, "fake", dtype, place(run, 1), joins=back, **more)
        found = [other.result(), again.result()]
    assert [each["bits"] for each in found] == [right] * 2
    assert found[1]["report"]["resyncs"] == 1


def test_without_page_locked_memory_it_has_the_bits_of_the_cpu() -> None:
    fake_device.limits(pinned=0)
    told = "^[0-9]+ bytes of the host's memory cannot be page-locked .the emulated device refuses"
    with pytest.warns(RuntimeWarning, match=told) as warned:
        found = train("fake")
    assert [each.filename for each in warned] == [__file__]
    assert found["bits"] == train("cpu")["bits"]


def test_without_streams_it_has_the_bits_of_the_cpu(monkeypatch: Any) -> None:
    def none(**_: object) -> Any:
        raise RuntimeError("Backend doesn't support create a new Stream.")

    monkeypatch.setattr(torch, "Stream", none)
    with pytest.warns(RuntimeWarning, match="fake has no streams or no events") as warned:
        found = train("fake")
    assert [each.filename for each in warned] == [__file__]
    assert found["bits"] == train("cpu")["bits"]


KINDS: Dict[str, Dict[str, Any]] = {
    "adapted": {"make": Adapted},
    "compiled": {"backend": "aot_eager"},
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_models_of_all_kinds_have_the_bits_of_the_cpu(kind: str) -> None:
    assert train("fake", **KINDS[kind])["bits"] == train("cpu", **KINDS[kind])["bits"]


def test_a_step_that_nobody_could_compute_is_refused_as_on_the_cpu() -> None:
    results, scales = [], []
    for device in ("cpu", "fake"):
        scaler = coded.GradScaler(device, init_scale=2.0**8)
        with pytest.warns(RuntimeWarning, match="step 2 was refused"):
            found = train(device, scaler=scaler, spoiled=2)
        results.append(found["bits"])
        scales.append(scaler.get_scale())
        assert found["report"]["skipped"] == 1
        assert math.isnan(found["losses"][2][0])
    assert results[0] == results[1]
    assert scales == [2.0**7] * 2


# What the trainer waits for.


def joined(model: Any, **more: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return coded.join(model, optimizer, **{"units": UNITS, "steps": STEPS, **more}), optimizer


@pytest.mark.parametrize("report", [False, True], ids=["silent", "reports"])
def test_the_trainer_waits_for_no_unit_while_it_computes(report: bool) -> None:
    model = Model(torch.float32, "fake")
    run, optimizer = joined(model, overlap=False)
    waited: List[int] = []
    for step in run:
        began = fake_device.counts().waits
        units = 0
        for micro in step:
            before = fake_device.counts().waits
            loss = loss_of(model, micro, "fake")
            loss.backward()
            if report:
                micro.report(loss)
            assert fake_device.counts().waits == before
            units += 1
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        waited.append(fake_device.counts().waits - began)
        assert units == UNITS
    # Once for each unit's gradient; losses are read with the task, when they are there.
    assert waited == [UNITS] * STEPS


def test_a_report_that_is_no_number_is_told_at_once() -> None:
    run, _ = joined(Model(torch.float32, "fake"))
    with run:
        for step in run:
            for micro in step:
                with pytest.raises(TypeError, match=r"scalar 0 of report.* of the shape \(2,\)"):
                    micro.report(torch.ones(2, device="fake"))
                return


# States and digests.


def test_a_state_goes_by_the_host_and_comes_back_to_the_device() -> None:
    model = Model(torch.bfloat16, "fake")
    run, optimizer = joined(model, steps=2)
    arrays = run._session.arrays
    kept: List[bytes] = []
    for step in run:
        for micro in step:
            loss_of(model, micro, "fake").backward()
        optimizer.step()
        if step.index == 0:
            kept, before, digest = arrays.save(), bits(model), run.digest()
    assert bits(model) != before
    arrays.load(kept)
    assert bits(model) == before
    assert run.digest() == digest
    moments = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert {(moment.device.type, moment.dtype) for moment in moments} == {("fake", torch.bfloat16)}
    cpu = Model(torch.bfloat16, "cpu")
    on_cpu, _ = joined(cpu)
    cpu.load_state_dict({name: each.cpu() for name, each in model.state_dict().items()})
    assert on_cpu.digest() == digest


# What is refused.


def test_parameters_on_two_devices_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to("fake"))
    with pytest.raises(TypeError, match="1.weight is on fake:0 and 0.weight on cpu: .*one device"):
        joined(model)


def test_a_model_that_is_moved_after_join_is_told() -> None:
    model = nn.Linear(2, 2)
    run, _ = joined(model)
    for parameter in model.parameters():
        torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().to("fake")))
    with pytest.raises(RuntimeError, match="weight was on cpu at join and is on fake:0 now"):
        with run:
            for step in run:
                for _ in step:
                    pass


def test_workers_on_devices_of_two_types_are_refused() -> None:
    told = r"differ in number format of the parameters \(float32 on fake and float32\)"
    with pytest.raises(RuntimeError, match=told):
        with coordinator("uncoded", 2) as run:
            joined(Model(torch.float32, "fake"), verify=0, **place(run, 0))
            with pytest.raises(ValueError, match=told):
                joined(Model(torch.float32, "cpu"), verify=0, **place(run, 1))


def test_an_error_of_the_device_is_the_workers_own() -> None:
    model = Model(torch.float32, "fake")
    run, _ = joined(model)
    with pytest.raises(RuntimeError, match="the emulated device has failed: out of order"):
        for step in run:
            for micro in step:
                fake_device.fail("out of order")
                loss_of(model, micro, "fake").backward()
    assert run.over


def test_a_model_of_an_older_pytorch_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.1")
    with pytest.raises(TypeError, match="on fake, for which PyTorch 2.7 is needed.*2.6.1"):
        joined(Model(torch.float32, "fake"))
