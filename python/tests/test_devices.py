"""Runs of workers whose models are on the emulated device: the bits of the CPU."""

from __future__ import annotations

import csv
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

import codedgrad  # noqa: E402
import codedgrad.torch as coded  # noqa: E402
import fake_device  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad._torch import announcer, host, staging  # noqa: E402
from codedgrad._torch.model import kinds_of, versions_with  # noqa: E402
from codedgrad._torch.sums import Summing  # noqa: E402
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
    monkeypatch.setattr(announcer, "_PART_OF_ACCELERATOR", 1)
    monkeypatch.setattr(staging, "_PIECE", 1)
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


def without_dropout(dtype: Any, device: str) -> Model:
    """The same without random numbers, for which the emulated device is waited for."""
    model = Model(dtype, device)
    model.dropout = nn.Identity()  # type: ignore[assignment]
    return model


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
    reached_at: int = 3,
    waits_for: Optional[Path] = None,
    dies: Optional[str] = None,
    hangs: Optional[Path] = None,
    joins: Optional[Path] = None,
    scaler: Optional[coded.GradScaler] = None,
    spoiled: int = -1,
    make: Callable[..., Any] = Model,
    backend: Optional[str] = None,
    **more: Any,
) -> Dict[str, Any]:
    """One worker, which makes `joins` when it has joined. It comes with its first unit only when
    `late_until` is there, or `dies` in it, or its device hangs in it, and it makes `hangs`; in the
    fourth step it makes `reached`, and goes on when `waits_for` is there."""
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
                if dies == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if dies == "its device fails":
                    fake_device.fail("out of order")
                if hangs is not None and units == 0:
                    fake_device.hang()
                    hangs.touch()
                units += 1
                loss = loss_of(called, micro, device)
                if step.index == spoiled:
                    loss = loss * math.inf
                (loss if scaler is None else scaler.scale(loss)).backward()
                micro.report(loss)
            if reached is not None and step.index == reached_at:
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
    announcer._PART_OF_ACCELERATOR = 1
    staging._PIECE = 1
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
    out = Summing.out

    def watched(self: Summing, first: int, end: int) -> None:
        early.append((first, end))
        out(self, first, end)

    monkeypatch.setattr(Summing, "out", watched)
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


@IN_ORDER
@FORMATS
def test_workers_that_share_a_queue_have_the_bits_of_the_cpu(
    dtype: str, order: Tuple[str, int, bool], tmp_path: Path
) -> None:
    right = train("cpu", dtype)["bits"]
    with coordinator("queue:m=1", 2) as run:
        workers = [
            started(tmp_path / str(k), order, "fake", dtype, place(run, k)) for k in range(2)
        ]
        found = [worker.result() for worker in workers]
    assert [each["bits"] for each in found] == [right] * 2


def of_two_of_three(folder: Path, order: Tuple[str, int, bool], device: str, dtype: str) -> Any:
    """What three workers come to under a code, of whom the last is late in every step: a sum with
    weights has the bits of those who have answered."""
    folder.mkdir()
    over = folder / "over"
    with coordinator("min-load:s=1", 3) as run:
        workers = []
        for k in range(3):
            more = {"late_until": over} if k == 2 else {"reached": over, "reached_at": STEPS - 1}
            place_of = place(run, k)
            workers.append(started(folder / str(k), order, device, dtype, place_of, **more))
        found = [worker.result() for worker in workers]
    return [each["bits"] for each in found]


@FORMATS
def test_workers_of_a_code_have_the_bits_of_the_cpu(dtype: str, tmp_path: Path) -> None:
    right = of_two_of_three(tmp_path / "cpu", ORDERS[0], "cpu", dtype)
    for name, order in zip(("lazy", "random"), ORDERS):
        assert of_two_of_three(tmp_path / name, order, "fake", dtype) == right
    assert right[0] == right[1] == right[2]


def test_a_worker_whose_device_hangs_leaves_when_it_is_told_to_end(tmp_path: Path) -> None:
    more: Dict[str, Any] = {"make": without_dropout}
    right = train("cpu", **more)["bits"]
    hung = tmp_path / "hung"
    with coordinator("groups:s=1", 2) as run:
        here = [("fake", "float32", place(run, k)) for k in range(2)]
        hangs = started(tmp_path / "1", ORDERS[0], *here[1], hangs=hung, **more)
        other = started(tmp_path / "0", ORDERS[0], *here[0], **more)
        wait_for(hung)
        os.kill(hangs.process.pid or 0, signal.SIGTERM)
        ended = hangs.end()
        assert other.result()["bits"] == right
    assert ended.status == 0
    assert "worker 1 leaves the run: it was told to end (SIGTERM)" in ended.stderr


@pytest.mark.parametrize("dies", ["killed", "its device fails"])
def test_a_worker_that_dies_takes_over_the_others_state(dies: str, tmp_path: Path) -> None:
    dtype = "bfloat16"
    right = train("cpu", dtype)["bits"]
    reached, back = tmp_path / "reached", tmp_path / "back"
    order, more = ORDERS[0], {"verify": 1}
    # The two steps that the other decides alone meanwhile are kept: one state is enough.
    with coordinator("groups:s=1", 2, log_steps=2) as run:
        dead = started(tmp_path / "1", order, "fake", dtype, place(run, 1), dies=dies, **more)
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
        ended = dead.end()
        assert ended.status == (-signal.SIGKILL if dies == "killed" else 1)
        assert dies == "killed" or "RuntimeError: the emulated device has failed" in ended.stderr
        wait_for(reached)
        again = started(tmp_path / "2", order, "fake", dtype, place(run, 1), joins=back, **more)
        found = [other.result(), again.result()]
    assert [each["bits"] for each in found] == [right] * 2
    assert found[1]["report"]["resyncs"] == 1


def deep(device: str = "fake") -> Any:
    """Two layers of a chunk each, whose gradients are final one after the other."""
    return nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)).to(device)


def _backward_twice(where: Dict[str, Any], step_of: int) -> None:
    """A worker whose last unit of one step writes its gradients twice."""
    model = deep()
    run, optimizer = joined(model, verify=0, **where)
    for step in run:
        for number, micro in enumerate(step):
            for _ in range(1 + (step.index == step_of and number == 1)):
                model(torch.ones(1, 512, device="fake")).square().mean().backward()
        optimizer.step()


def test_gradients_that_are_written_after_they_went_out_are_found_out(tmp_path: Path) -> None:
    length = coded.length(deep("cpu"))
    # The script would do the same again.
    with pytest.raises(RuntimeError, match="worker 1: RuntimeError: .* had submitted it"):
        with loop.serve("uncoded", workers=2, units=UNITS, steps=STEPS, length=length) as run:
            workers = [
                Apart(tmp_path / str(k), _backward_twice, place(run, k), 4 * k - 1)
                for k in range(2)
            ]
            ended = workers[1].end()
            workers[0].process.kill()
    assert ended.status == 1
    assert "changed after backward() had submitted it" in ended.stderr


def test_without_page_locked_memory_it_has_the_bits_of_the_cpu() -> None:
    fake_device.limits(pinned=0)
    told = "^[0-9]+ bytes of the host's memory cannot be page-locked for fake"
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


@pytest.mark.parametrize("overlap", [False, True], ids=["after", "overlap"])
@pytest.mark.parametrize("report", [False, True], ids=["silent", "reports"])
def test_the_trainer_waits_once_for_a_task(report: bool, overlap: bool, monkeypatch: Any) -> None:
    model = Model(torch.float32, "fake")
    run, optimizer = joined(model, overlap=overlap)
    settled: List[int] = []
    settle = Summing.settle

    def watched(self: Summing) -> Optional[bool]:
        settled.append(int(self._handing._busy))
        return settle(self)

    monkeypatch.setattr(Summing, "settle", watched)
    waited: List[Tuple[int, int]] = []
    for step in run:
        began = fake_device.counts().waits
        settled.clear()
        units = 0
        for micro in step:
            assert fake_device.counts().waits == began
            assert not any(settled)
            loss = loss_of(model, micro, "fake")
            loss.backward()
            if report:
                micro.report(loss)
            units += 1
        waited.append((fake_device.counts().waits - began, sum(settled)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert units == UNITS
    # For the thread that hands over and waits for the device: losses are there by then.
    assert waited == [(0, 1)] * STEPS


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
        for parameter in model.parameters():
            average = parameter.detach().float() / 3
            optimizer.state[parameter]["average"] = average
        if step.index == 0:
            kept, before, digest = arrays.save(), bits(model), run.digest()
    assert bits(model) != before
    arrays.load(kept)
    assert bits(model) == before
    assert run.digest() == digest
    moments = [state["momentum_buffer"] for state in optimizer.state.values()]
    assert {(moment.device.type, moment.dtype) for moment in moments} == {("fake", torch.bfloat16)}
    # PyTorch rounds what an optimizer keeps to the parameters' format.
    for parameter in model.parameters():
        average = optimizer.state[parameter]["average"]
        assert average.device.type == "fake" and average.dtype is torch.float32
        assert torch.equal(average.cpu(), parameter.detach().cpu().float() / 3)


def test_digests_are_computed_on_the_device(monkeypatch: Any) -> None:
    monkeypatch.setattr(host, "_SLICE", 1000)
    generator = torch.Generator().manual_seed(5)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for shape in ((), (999,), (1000,), (37, 61)):
            numbers = (9 * torch.randn(shape, generator=generator)).to(dtype)
            for here in (numbers, numbers.t() if len(shape) == 2 else numbers):
                right = host.digest_of_bits(here)
                assert host.digest_of_bits(here.to("fake")) == right
    # Nothing comes to the host but a number for each parameter.
    model = Model(torch.float32, "fake")
    run, _ = joined(model)
    before = fake_device.counts().waits
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", None)
        assert run.digest() == run.digest()
    assert fake_device.counts().waits - before <= 2 * len(list(model.parameters()))
    with torch.no_grad():
        model.hidden.weight[3, 4] += 1e-3
    changed = run.digest()
    with torch.no_grad():
        model.hidden.weight[3, 4] -= 1e-3
    assert changed not in (run.digest(), 0)
    run.close()


def test_an_optimizer_is_in_the_layout_as_pytorch_computes_it_on_the_device() -> None:
    parameters = [nn.Parameter(torch.zeros(2, device="fake"))]

    def ways(**told: Any) -> Any:
        [[_, [found]]] = kinds_of([torch.optim.AdamW(parameters, **told)])
        return found

    assert ways() == ways(foreach=True) == ["foreach"]
    assert ways(foreach=False) == ways(fused=False, foreach=False) == []
    assert ways(lr=torch.tensor(0.1)) == []
    assert ways(lr=torch.tensor(0.1), capturable=True) == ["foreach", "capturable"]


def test_a_card_that_has_a_name_is_among_the_versions(monkeypatch: Any) -> None:
    device = torch.device("fake", 0)
    assert versions_with("torch 2", device) == "torch 2"
    monkeypatch.setattr(torch.fake, "get_device_name", lambda of: f"card {of.index}", raising=False)
    assert versions_with("torch 2", device) == "torch 2, card 0"
    assert versions_with("torch 2", torch.device("cpu")) == "torch 2"


# What is refused.


@pytest.mark.parametrize("order", ["eager", "lazy"])
def test_a_recorder_has_the_times_of_the_device(tmp_path: Path, order: str) -> None:
    fake_device.settings(order)
    model = nn.Linear(8, 8).to("fake")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with codedgrad.record(model, optimizer, tmp_path):
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 8, device="fake")).sum()
            if step == 4:
                time.sleep(0.05)
            loss.backward()
            optimizer.step()
    with (tmp_path / "rank-0.csv").open() as file:
        assert "fake, replicated" in file.readline()
        rows = [[float(cell or "nan") for cell in row.values()] for row in csv.DictReader(file)]
    assert [row[0] for row in rows] == list(range(6))
    stamps = [stamp for row in rows for stamp in row[1:6]][1:]
    assert stamps == sorted(stamps) and len(stamps) == 29
    if order == "eager":
        forward, first = rows[4][2:4]
        assert first - forward >= 0.05


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
                if micro.unit == 0:
                    fake_device.fail("out of order")
                loss_of(model, micro, "fake").backward()
    assert run.over


def test_a_device_without_memory_is_the_workers_own_error() -> None:
    model = Model(torch.float32, "fake")
    run, _ = joined(model)
    with pytest.raises(RuntimeError, match="memory"):
        for step in run:
            for micro in step:
                fake_device.limits(device=fake_device.memory().device + 4096)
                loss_of(model, micro, "fake").backward()
    assert run.over


@pytest.mark.parametrize("all_of_it", [True, False], ids=["all", "some"])
def test_gradients_that_a_captured_graph_writes_are_refused(all_of_it: bool) -> None:
    model = Model(torch.float32, "fake")
    loss = model(torch.zeros(2, 5, dtype=torch.long, device="fake")).sum()
    loss.backward()
    captured = [parameter.grad for parameter in model.parameters()]
    run, _ = joined(model)

    def replay() -> None:
        for gradient in captured:
            gradient.fill_(1.0)

    cure = "make_graphed_callables"
    with pytest.raises(RuntimeError, match=f"left no gradient.*{cure}") if all_of_it else (
        pytest.warns(RuntimeWarning, match=f"4 parameters had a gradient when .*{cure}")
    ):
        with run:
            for step in run:
                for micro in step:
                    replay()
                    if not all_of_it:
                        model.norm.weight.sum().backward()


def test_a_model_of_an_older_pytorch_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(torch, "__version__", "2.6.1")
    with pytest.raises(TypeError, match="on fake, for which PyTorch 2.7 is needed.*2.6.1"):
        joined(Model(torch.float32, "fake"))


def passes_of(micro: int, staging: str, monkeypatch: Any) -> float:
    """Passes over the host's memory in a step of a worker that is alone."""
    monkeypatch.setenv("CODEDGRAD_STAGING", staging)
    model = nn.Linear(64, 63, device="fake")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    steps, numbers = 3, 65 * 63
    with coded.join(model, optimizer, units=micro, steps=steps, verify=0) as run:
        for step in run:
            for _ in step:
                model(torch.ones(2, 64, device="fake")).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report = run.report()
    assert report["device"]["back"]["bytes"] == 4 * numbers * steps
    return report["host_bytes"] / (4 * numbers * steps)


def test_a_step_takes_as_many_passes_for_one_micro_batch_as_for_eight(monkeypatch: Any) -> None:
    found = [passes_of(micro, "device", monkeypatch) for micro in (1, 4, 8)]
    assert found == [6.0] * 3
    before = [passes_of(micro, "host", monkeypatch) for micro in (1, 4, 8)]
    assert before == [11.0, 29.0, 53.0]
