"""Scripts for DistributedDataParallel as workers: `prepare`, with the bits of the iterator's loop."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.optim.lr_scheduler import StepLR  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import codedgrad.torch as coded  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad._torch import host  # noqa: E402
from runs import together, wait_until  # noqa: E402
from test_torch import Deep  # noqa: E402

ROWS, EPOCHS, STEPS = 4, 3, 4
WORKERS = 4


@pytest.fixture(autouse=True)
def backward_is_as_it_was() -> Iterator[None]:
    before = torch.autograd.backward
    yield
    assert torch.autograd.backward is before


class Model(nn.Module):
    def __init__(self, dropout: float = 0.2):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(dropout), nn.GELU(), nn.Linear(8, 2)
        )
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            parameter.data.normal_(0, 0.5, generator=generator)

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def model_for(where: Dict[str, Any]) -> Model:
    """Threads share the generator that dropout draws from."""
    return Model(0.0 if where else 0.2)


def dataset(units: int = WORKERS, accumulate: int = 1) -> Any:
    generator = torch.Generator().manual_seed(7)
    count = units * ROWS * accumulate * STEPS + 3
    x = torch.randn(count, 3, generator=generator)
    return TensorDataset(x, x[:, :2] * 2 - x[:, 2:], torch.arange(count))


def optimizer_of(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), 1e-2)


def schedule(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (2 * steps))


def bits(model: Any) -> List[bytes]:
    return [each.detach().numpy().tobytes() for each in model.parameters()]


class Dies(Exception):
    pass


Trouble = Callable[[int, Any], Optional[str]]


def prepared(
    where: Dict[str, Any],
    *,
    units: int = WORKERS,
    accumulate: int = 1,
    trouble: Trouble = lambda step, run: None,
    epochs: int = EPOCHS,
    data: Any = None,
    **more: Any,
) -> Dict[str, Any]:
    """A script for DistributedDataParallel, but for its `prepare`."""
    model = model_for(where)
    optimizer = optimizer_of(model)
    data = dataset(units, accumulate) if data is None else data
    loader = DataLoader(data, batch_size=ROWS, shuffle=True, drop_last=True)
    model, optimizer, loader, scheduler = coded.prepare(
        model, optimizer, loader, schedule, epochs=epochs, accumulate=accumulate, units=units,
        **where, **more,
    )  # fmt: skip
    run = model.run
    counts = []
    for epoch in range(epochs):
        for i, (x, y, _) in enumerate(loader):
            what = trouble(run.index, run)
            loss = F.mse_loss(model(x), y) / accumulate
            if what == "nan" and not run._iterations.hollow:
                loss = loss * math.nan
            run.report(loss.detach())
            loss.backward()
            if (i + 1) % accumulate == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if run.sync_gradients:
                    counts.append(scheduler.last_epoch == run.index + 1)
    assert all(counts), "the scheduler counts each step once"
    assert run.complete and run.over
    return {
        "bits": bits(model), "totals": run.totals, "work": run.work(), "rate": scheduler.get_last_lr()
    }  # fmt: skip


def iterated(
    where: Dict[str, Any], *, units: int = WORKERS, accumulate: int = 1, **more: Any
) -> Dict[str, Any]:
    """The same with the iterator, and samples as PyTorch's sampler deals them."""
    trouble: Trouble = more.pop("trouble", lambda step, run: None)
    model = Model(more.pop("dropout", 0.2))
    optimizer = optimizer_of(model)
    data = dataset(units, accumulate)
    samplers = [DistributedSampler(data, units, u, drop_last=True) for u in range(units)]
    scheduler = schedule(optimizer, EPOCHS * STEPS)
    run = coded.join(
        model, optimizer, units=units, steps=EPOCHS * STEPS, unit_samples=ROWS * accumulate,
        state={"scheduler": scheduler}, **where, **more,
    )  # fmt: skip
    for step in run:
        for micro in step:
            epoch, place = divmod(micro.batch, STEPS)
            samplers[micro.unit].set_epoch(epoch)
            own = list(samplers[micro.unit])[place * ROWS * accumulate :]
            losses = 0.0
            for part in range(accumulate):
                x, y, _ = data[own[part * ROWS : (part + 1) * ROWS]]
                loss = F.mse_loss(model(x), y) / accumulate
                losses = losses + loss.detach()
                if trouble(micro.step, run) == "nan":
                    loss = loss * math.nan
                loss.backward()
            micro.report(losses)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return {"bits": bits(model), "totals": step.totals, "rate": scheduler.get_last_lr()}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("units", [1, 4])
def test_alone_it_has_the_iterators_bits(units: int, accumulate: int) -> None:
    mine = prepared({}, units=units, accumulate=accumulate)
    right = iterated({}, units=units, accumulate=accumulate)
    assert mine["bits"] == right["bits"]
    assert mine["rate"] == right["rate"]
    assert mine["totals"][0] == pytest.approx(right["totals"][0])


# Two paths of two workers through the batch.
CUTS = "0,3\n3,4\n0,1\n1,4\n"
# A scheme, how many units it needs, and whether its bits are those of one process.
SCHEMES = {
    "uncoded": (4, True),
    "groups:s=1": (4, True),
    "groups:s=1 by share": (2, True),
    "min-load:s=1": (4, False),
    "cyclic:s=1": (4, False),
    "queue:m=2": (8, True),
    "ring:reach=2": (4, True),
    "graph:d=2": (4, False),
    "interval:cuts=CUTS": (4, False),
    # Whose samples are left out depends on times.
    "drop:b=1": (4, None),
}


@pytest.mark.parametrize("trouble", ["calm", "late", "back", "nan at one", "nan at all"])
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_worker_has_the_iterators_bits(scheme: str, trouble: str, tmp_path: Path) -> None:
    units, aligned = SCHEMES[scheme]
    cuts = tmp_path / "cuts"
    cuts.write_text(CUTS)
    text = scheme.partition(" ")[0].replace("CUTS", str(cuts))
    if text == "uncoded" and trouble == "nan at one":
        pytest.skip("nobody else has what the worker had")
    died = threading.Event()

    def of(k: int) -> Trouble:
        def found(step: int, run: Any) -> Optional[str]:
            if trouble == "late" and k == 1:
                time.sleep(0.01)
            if trouble == "back" and k == 1 and step == 3 and not died.is_set():
                died.set()
                raise Dies
            if trouble == "nan at one" and k == 1 and step in (2, 5):
                return "nan"
            return "nan" if trouble == "nan at all" and step == 3 else None

        return found

    def work(k: int, where: Dict[str, Any], coordinator: Any) -> Any:
        try:
            return prepared(where, units=units, trouble=of(k))
        except Dies:
            if text != "uncoded":
                wait_until(lambda: coordinator.decided >= 5, "step 5")
            return prepared(where, units=units)

    found, coordinator = together(
        text, work, units=units, steps=EPOCHS * STEPS, length=coded.length(Model()),
        unit_samples=ROWS, log_steps=1 if units == 2 else None, return_within=30.0,
    )  # fmt: skip
    refused = int(trouble == "nan at all")
    assert (coordinator.decided, coordinator.refused) == (EPOCHS * STEPS, refused)
    calm: Trouble = lambda step, run: None  # noqa: E731
    right = iterated({}, units=units, trouble=of(0) if refused else calm, dropout=0.0)
    for worker in found:
        assert worker["bits"] == found[0]["bits"]
        assert worker["rate"] == right["rate"]
        if aligned:
            assert worker["bits"] == right["bits"]
            if not worker["work"]["resyncs"]:
                assert worker["totals"][0] == pytest.approx(right["totals"][0])
    if aligned is None:
        return
    for mine, his in zip(found[0]["bits"], right["bits"]):
        near = torch.frombuffer(bytearray(mine), dtype=torch.float32)
        assert torch.allclose(near, torch.frombuffer(bytearray(his), dtype=torch.float32), atol=1e-4)


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1"])
def test_all_begin_with_worker_zeros_parameters(scheme: str) -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        model = Model(0.0)
        with torch.no_grad():
            for each in model.parameters():
                each += k
        optimizer = optimizer_of(model)
        loader = DataLoader(dataset(), batch_size=ROWS, shuffle=True, drop_last=True)
        model, optimizer, loader = coded.prepare(
            model, optimizer, loader, epochs=1, units=WORKERS, **where
        )
        for x, y, _ in loader:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return bits(model), model.run.work()["resyncs"]

    found, _ = together(
        scheme, work, units=WORKERS, steps=STEPS, length=coded.length(Model()), unit_samples=ROWS
    )
    alone = work(0, {}, None)  # type: ignore[arg-type]
    del alone
    assert len({tuple(each[0]) for each in found}) == 1
    assert [each[1] for each in found] == [0, 1, 1, 1]


@pytest.mark.parametrize("firsts", [(4, 4), (4, 0), (0, 4)])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_checkpoint_that_worker_zero_lacks_is_told(firsts: Any, earlier: int) -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        time.sleep(0.0 if k == earlier else 0.3)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model, optimizer = coded.prepare(
            model, optimizer, steps=8, units=2, first=firsts[k], **where
        )
        for _ in model.run.iterations():
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        return model.run.work()["applied"]

    told: Dict[str, Any] = dict(workers=2, units=2, steps=8, length=6, first=firsts[0])
    if firsts[0] < firsts[1]:
        with pytest.raises(ValueError, match="first is 4 here, and the run stands at step 0"):
            together("uncoded", work, **told)
    else:
        assert together("uncoded", work, **told)[0] == [4, 4]


def test_steps_that_are_counted_otherwise_than_the_optimizers_are_told(recwarn: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    for first, steps in ((4, 5), (8, 9)):
        run = coded.prepare(model, optimizer, steps=steps, first=first, units=1)[0].run
        run.close()
    said = [str(each.message) for each in recwarn.list if "first is" in str(each.message)]
    assert len(said) == 1 and "first is 8, and the optimizer has made 4 steps" in said[0], said


@pytest.mark.parametrize("given", [True, False])
def test_a_scheduler_that_is_not_given_is_told(given: bool, recwarn: Any) -> None:
    model = Model(0.0)
    optimizer = optimizer_of(model)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
    loader = DataLoader(dataset(1), batch_size=ROWS)
    objects = [model, optimizer, loader] + [scheduler] * given
    wrapped, optimizer, loader, *_ = coded.prepare(*objects, epochs=1)
    for x, y, _ in loader:
        optimizer.zero_grad()
        F.mse_loss(wrapped(x), y).backward()
        optimizer.step()
        scheduler.step()
    said = [str(each.message) for each in recwarn.list]
    assert any("Give it to prepare()" in each for each in said) is not given, said


def test_without_it_they_must_begin_alike() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        model = Model(0.0)
        with torch.no_grad():
            next(model.parameters()).add_(k)
        model = coded.prepare(model, steps=STEPS, units=WORKERS, sync=False, **where)
        for _ in model.run.iterations():  # type: ignore[assignment]
            model(torch.ones(1, 3)).sum().backward()

    with pytest.raises(ValueError, match="to begin with"):
        together("uncoded", work, units=WORKERS, steps=STEPS, length=coded.length(Model()))


def test_gradients_are_handed_over_during_the_backward_pass(monkeypatch: Any) -> None:
    monkeypatch.setattr("codedgrad._torch.announcer._PART", 1)
    out = host.OnHost.out
    early: List[int] = []

    def counted(self: Any, *args: Any) -> None:
        early.append(args[0])
        out(self, *args)

    monkeypatch.setattr(host.OnHost, "out", counted)

    def work(k: int, where: Dict[str, Any], _: Any) -> Any:
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        rows = torch.randn(32, 300, generator=torch.Generator().manual_seed(1))
        loader = DataLoader(TensorDataset(rows), batch_size=2, shuffle=True)
        wrapped, optimizer, loader = coded.prepare(
            model, optimizer, loader, epochs=2, units=4, overlap=bool(where), **where
        )
        for _ in range(2):
            for (x,) in loader:
                wrapped(x).square().mean().backward()
                optimizer.step()
        return bits(model)

    right = work(0, {}, None)
    assert not early
    length = coded.length(Deep())
    found, _ = together("uncoded", work, units=4, steps=8, length=length, unit_samples=2)
    assert all(each == right for each in found)
    # After each worker's first unit, in parts, to the first parameter.
    assert len(early) > 4 * 7 and min(early) == 0


def test_a_run_may_be_ended_early_by_one() -> None:
    def work(k: int, where: Dict[str, Any], _: Any) -> Any:
        model = Model(0.0)
        optimizer = optimizer_of(model)
        loader = DataLoader(dataset(), batch_size=ROWS, shuffle=True, drop_last=True)
        model, optimizer, loader = coded.prepare(
            model, optimizer, loader, epochs=EPOCHS, units=WORKERS, **where
        )
        for _ in range(EPOCHS):
            for x, y, _ in loader:
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                if k == 2 and model.run.sync_gradients and model.run.index == 5:
                    model.run.finish()
        assert model.run.over and not model.run.complete
        return bits(model)

    found, coordinator = together(
        "groups:s=1", work, units=WORKERS, steps=EPOCHS * STEPS, length=coded.length(Model()),
        unit_samples=ROWS,
    )  # fmt: skip
    assert all(each == found[0] for each in found) and 6 <= coordinator.decided < EPOCHS * STEPS


@pytest.mark.parametrize("at", [2, 3, 4, 7])
def test_epochs_are_counted_once_also_by_who_comes_back(at: int) -> None:
    died = threading.Event()

    def work(k: int, where: Dict[str, Any], coordinator: Any) -> Any:
        def script(life: int) -> Any:
            model = Model(0.0)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            loader = DataLoader(dataset(), batch_size=ROWS, shuffle=True, drop_last=True)
            model, optimizer, loader, scheduler = coded.prepare(
                model, optimizer, loader, lambda optimizer, _: StepLR(optimizer, 1, 0.5),
                epochs=EPOCHS, units=WORKERS, **where,
            )  # fmt: skip
            for epoch in range(EPOCHS):
                for x, y, _ in loader:
                    # One that was late takes over a state and sees no step 1.
                    if (k, life) == (1, 0) and model.run.index >= 1:
                        died.set()
                        raise Dies
                    F.mse_loss(model(x), y).backward()
                    optimizer.step()
                    if life == 0 and model.run.index == at:
                        # So that the state that is handed over is about this old.
                        wait_until(died.is_set, "a worker that is lost")
                        time.sleep(0.02)
                scheduler.step()
            return bits(model), scheduler.get_last_lr(), scheduler.last_epoch

        try:
            return script(0)
        except Dies:
            wait_until(lambda: coordinator.decided >= at, f"step {at}")
            return script(1)

    found, _ = together(
        "groups:s=1", work, units=WORKERS, steps=EPOCHS * STEPS, length=coded.length(Model()),
        unit_samples=ROWS, log_steps=1,
    )  # fmt: skip
    assert len({str(each) for each in found}) == 1 and found[0][2] == EPOCHS


def named(_: int) -> None:
    """Of each process that reads ahead."""
    os.environ["PREPARED_READS"] = "ahead"


def collated(samples: List[Any]) -> Any:
    x, y, numbers = torch.utils.data.default_collate(samples)
    return x, y, numbers, os.environ.get("PREPARED_READS")


@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_a_loader_has_is_kept(accumulate: int) -> None:
    def batches(workers: int) -> List[Any]:
        model = Model(0.0)
        loader = DataLoader(
            dataset(1, accumulate), ROWS, shuffle=True, num_workers=workers, collate_fn=collated,
            drop_last=accumulate == 1, worker_init_fn=named if workers else None,
        )  # fmt: skip
        model, loader = coded.prepare(model, loader, epochs=2, accumulate=accumulate)
        found = []
        for _ in range(2):
            for x, y, numbers, how in loader:
                found.append((numbers.tolist(), how))
                model(x).sum().backward()
        assert model.run.complete and len(loader) == STEPS * accumulate
        return found

    mine, ahead = batches(0), batches(2)
    assert [each[0] for each in mine] == [each[0] for each in ahead]
    assert {each[1] for each in mine} == {None} and {each[1] for each in ahead} == {"ahead"}
    epoch = [number for each in mine[: STEPS * accumulate] for number in each[0]]
    assert len(set(epoch)) == len(epoch), "each sample once in an epoch"
