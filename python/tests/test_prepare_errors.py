"""What scripts for DistributedDataParallel hold that cannot stay: errors that say what to write."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

import codedgrad.torch as coded  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad._core import joining  # noqa: E402
from codedgrad._torch import outputs  # noqa: E402
from codedgrad._torch.outputs import Outputs, tensors_of  # noqa: E402
from test_launch import Launched, script  # noqa: E402

DATA = TensorDataset(torch.randn(24, 3), torch.randn(24, 2))


def model_of(kind: Any = None) -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 4), kind or nn.GELU(), nn.Linear(4, 2))


def parts(batch_size: int = 4, **more: Any) -> Tuple[Any, Any, Any]:
    model = model_of()
    loader: Any = DataLoader(DATA, batch_size=batch_size, **more)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), loader


def prepared(epochs: int = 2, **more: Any) -> Tuple[Any, Any, Any]:
    found: Tuple[Any, Any, Any] = coded.prepare(*parts(), epochs=epochs, **more)
    return found


@pytest.fixture(autouse=True)
def left_behind() -> Iterator[None]:
    before = torch.autograd.backward
    yield
    for iterations in [each() for each in outputs._watching]:
        assert iterations is not None
        iterations.leave()
    assert torch.autograd.backward is before


def loss_of(model: Any, x: Any, y: Any) -> Any:
    return F.mse_loss(model(x), y)


# What is refused when it is prepared.


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(DATA)


REFUSED = {
    "DistributedSampler, which gives.*leave it out, DataLoader.*sampler.set_epoch": lambda: [
        model_of(), DataLoader(DATA, 4, sampler=DistributedSampler(DATA, 2, 0))
    ],
    "an IterableDataset: .*run.iterations": lambda: [model_of(), DataLoader(Stream(), 4)],
    "a sampler of its own, SubsetRandomSampler": lambda: [
        model_of(), DataLoader(DATA, 4, sampler=torch.utils.data.SubsetRandomSampler([1, 2]))
    ],
    "a batch_sampler of its own": lambda: [
        model_of(), DataLoader(DATA, batch_sampler=[[1, 2], [3]])  # type: ignore[arg-type]
    ],
    "two loaders: .*evaluation": lambda: [model_of(), DataLoader(DATA), DataLoader(DATA)],
    "SyncBatchNorm, whose forward pass waits": lambda: [
        model_of(nn.SyncBatchNorm(4, track_running_stats=False)), DataLoader(DATA, 4)
    ],
    "torch.amp.GradScaler drops steps.*coded.GradScaler": lambda: [
        model_of(), DataLoader(DATA, 4), torch.amp.GradScaler("cpu")
    ],
    "was given no model": lambda: [DataLoader(DATA, 4)],
    "was given a int": lambda: [model_of(), DataLoader(DATA, 4), 3],
    "24 samples, a step 25": lambda: [model_of(), DataLoader(DATA, 25)],
}  # fmt: skip


@pytest.mark.parametrize("why", sorted(REFUSED))
def test_what_cannot_be_prepared_is_named_with_what_to_write(why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        coded.prepare(*REFUSED[why](), epochs=1)


def test_the_runs_length_is_said_once() -> None:
    with pytest.raises(ValueError, match="one of steps= and epochs="):
        coded.prepare(*parts(), steps=1, epochs=1)
    with pytest.raises(ValueError, match="epochs= without a loader"):
        coded.prepare(model_of(), epochs=1)


def test_torchs_scaler_in_state_is_refused() -> None:
    scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(TypeError, match='state={"scaler": scaler}'):
        coded.prepare(*parts(), epochs=1, state={"scaler": scaler})


def test_workers_are_counted_by_the_launcher(monkeypatch: Any) -> None:
    monkeypatch.setenv("CODEDGRAD_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ValueError, match="units= is needed"):
        coded.prepare(*parts(), epochs=1)


def test_launchers_say_it_as_the_program_reads_it(monkeypatch: Any) -> None:
    source = Path(__file__).resolve().parent.parent.parent / "src/transport/tcp/environment.rs"
    for const, names in (("NUMBERS", joining._WORKER), ("SIZES", joining._WORKERS)):
        listed = source.read_text().split(f"const {const}: ")[1].split("=", 1)[1].split("];")[0]
        assert tuple(listed.split('"')[1::2]) == names
    monkeypatch.setenv("CODEDGRAD_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("SLURM_NTASKS", "four")
    with pytest.raises(ValueError, match="SLURM_NTASKS is 'four'"):
        coded.prepare(*parts(), epochs=1)


def test_torchrun_of_a_prepared_script_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    model, optimizer, loader = parts()
    cures = "codedgrad run -n 4 .*mesh=.*CODEDGRAD_ALONE=1"
    with pytest.raises(RuntimeError, match=cures):
        coded.prepare(model, optimizer, loader, epochs=1)
    with pytest.raises(RuntimeError, match=cures):
        coded.join(model, optimizer, units=1, steps=1)
    monkeypatch.setenv("CODEDGRAD_ALONE", "1")
    coded.prepare(model, optimizer, loader, epochs=1)


class Process:
    """A process group of this process alone."""

    def __init__(self, folder: Path):
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        dist.destroy_process_group()


def test_a_wrapper_over_one_rank_is_taken_off(tmp_path: Path) -> None:
    with Process(tmp_path):
        model, optimizer, loader = parts()
        wrapped = nn.parallel.DistributedDataParallel(model)
        found = coded.prepare(wrapped, optimizer, loader, epochs=1)
        assert found[0].module is model
        for x, y in found[2]:
            loss_of(found[0], x, y).backward()
            optimizer.step()
        assert found[0].run.complete
        wrapped = nn.parallel.DistributedDataParallel(model_of())
        wrapped.register_comm_hook(None, lambda _, bucket: bucket)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="register_comm_hook"):
            coded.prepare(wrapped, steps=1)


def test_a_wrapper_over_several_ranks_is_refused() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model_of())
        with pytest.raises(TypeError, match="over 2 ranks.*module itself.*init_process_group out"):
            coded.prepare(wrapped, steps=1)
        with pytest.raises(TypeError, match="2 ranks.*leaves out init_process_group"):
            coded.prepare(wrapped.module, steps=1)
    finally:
        dist.destroy_process_group()


def test_what_is_left_of_an_epoch_is_said_once() -> None:
    with pytest.warns(RuntimeWarning, match="incomplete last batch of 4 samples is left") as said:
        model, optimizer, loader = coded.prepare(*parts(batch_size=5), epochs=2)
        for _ in range(2):
            for x, y in loader:
                assert len(x) == 5
                loss_of(model, x, y).backward()
                optimizer.step()
    assert model.run.complete and len(said) == 1


def test_loops_beyond_the_runs_epochs_are_told_once() -> None:
    model, optimizer, loader = coded.prepare(*parts(), epochs=2)
    with pytest.warns(RuntimeWarning, match="loop of epoch 2, counted from 0.*epochs=") as said:
        for epoch in range(5):
            for x, y in loader:
                assert epoch < 2
                loss_of(model, x, y).backward()
                optimizer.step()
    assert model.run.complete and len(said) == 1


# What is wrong in the loop.


def test_a_training_forward_pass_is_a_part_of_the_loop() -> None:
    model, optimizer, loader = prepared(epochs=1)
    x, y = DATA[:4]
    with pytest.raises(RuntimeError, match="outside of the loop"):
        model(x)
    with torch.no_grad():
        assert model(x).shape == (4, 2)
    for x, y in loader:
        loss_of(model, x, y).backward()
        optimizer.step()
    with pytest.raises(RuntimeError, match="the run is over.*model.module"):
        model(x)
    assert model.eval()(x).requires_grad


def test_several_backward_passes_belong_to_the_iterator() -> None:
    model, optimizer, loader = prepared()
    for x, y in loader:
        loss = loss_of(model, x, y)
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="several backward passes.*accumulate=.*coded.join"):
            loss.backward()
        with pytest.raises(RuntimeError, match="several backward passes"):
            model(x)
        break


def test_evaluation_is_the_module_alone_anywhere() -> None:
    model, optimizer, loader = prepared(epochs=1)
    for x, y in loader:
        with torch.no_grad():
            loss_of(model, x, y)
        loss_of(model, x, y).backward()
        model.eval()
        loss_of(model, x, y)
        model.train()
        optimizer.step()
    assert model.run.complete


@pytest.mark.parametrize("how", ["module", "continue", "eval"])
def test_an_iteration_without_a_backward_pass_is_named(how: str) -> None:
    model, optimizer, loader = prepared()
    said = {
        "module": "did not call the model",
        "continue": "no backward pass",
        "eval": "did not call the model",
    }
    with pytest.raises(RuntimeError, match=f"{said[how]}.*run.nothing"):
        for x, y in loader:
            if how == "continue":
                loss_of(model, x, y)
                continue
            if how == "eval":
                model.eval()
            loss_of(model.module if how == "module" else model, x, y).backward()
            optimizer.step()


def test_an_iteration_may_have_nothing_on_purpose() -> None:
    model, optimizer, loader = prepared(epochs=2)
    steps = 0
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            if i == 3 and not model.run._iterations.hollow:
                model.run.nothing()
                continue
            loss_of(model, x, y).backward()
            optimizer.step()
            steps += model.run.sync_gradients
    assert model.run.complete and steps == 2 * len(loader)


def test_a_decided_step_is_made() -> None:
    model, optimizer, loader = prepared()
    with pytest.raises(RuntimeError, match=r"SGD.step\(\) was not called.*accumulate="):
        for x, y in loader:
            loss_of(model, x, y).backward()


def test_the_schedule_comes_after_the_backward_pass() -> None:
    model, optimizer, loader, schedule = coded.prepare(
        *parts(), lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 1), epochs=1
    )
    for x, y in loader:
        with pytest.raises(RuntimeError, match="comes after optimizer.step"):
            schedule.step()
        break


def test_what_is_summed_without_sync_is_told_before() -> None:
    model, optimizer, loader = prepared()
    for x, y in loader:
        with pytest.raises(RuntimeError, match="accumulate="), model.no_sync():
            loss_of(model, x, y).backward()
        break


def test_a_rate_that_counts_iterations_is_found_out() -> None:
    model, optimizer, loader = prepared(units=4)
    rate = 0.1
    with pytest.raises(RuntimeError, match="lr of an optimizer was changed.*run.index"):
        for x, y in loader:
            rate *= 0.9
            optimizer.param_groups[0]["lr"] = rate
            loss_of(model, x, y).backward()
            optimizer.step()


def test_a_rate_that_counts_steps_is_not() -> None:
    model, optimizer, loader = prepared(units=4, epochs=1)
    for x, y in loader:
        optimizer.param_groups[0]["lr"] = 0.9**model.run.index
        loss_of(model, x, y).backward()
        optimizer.step()
    assert model.run.complete


def test_what_is_reported_comes_before_the_backward_pass() -> None:
    model, optimizer, loader = prepared()
    for x, y in loader:
        loss = loss_of(model, x, y)
        model.run.report(loss)
        loss.backward()
        assert model.run.totals[0] == pytest.approx(float(loss.detach()))
        with pytest.raises(RuntimeError, match="before backward"):
            model.run.report(loss)
        break


def test_old_names_work_and_warn_once_at_each_line_that_uses_them() -> None:
    model = coded.prepare(model_of(), steps=3)
    run, steps = model.run, []
    with pytest.warns(DeprecationWarning) as told:
        # As Python does it: once for each line. pytest would keep every warning.
        warnings.simplefilter("default")
        for step in run.passages():
            assert run.whole is run.sync_gradients is False
            model(torch.ones(1, 3)).sum().backward()
            assert run.whole is run.sync_gradients is True
            steps.append(step)
    assert steps == [0, 1, 2] and run.complete
    assert [(each.filename, str(each.message)) for each in told] == [
        (__file__, f"{old} is called {new} now: the old name goes in 0.2")
        for old, new in [
            ("run.passages()", "run.iterations()"),
            ("run.whole", "run.sync_gradients"),
            ("run.whole", "run.sync_gradients"),
        ]
    ]


def test_what_distributeddataparallel_has_beside_is_refused() -> None:
    model, _, _ = prepared()
    with pytest.raises(TypeError, match="register_comm_hook") as caught:
        model.register_comm_hook(None, None)
    # What it says to do instead is taken by the program and by the package.
    command, call = re.findall("`([^`]+)`", str(caught.value))
    line = [sys.executable, "-m", *command.split(), "-n", "1", "absent.py"]
    said = subprocess.run(line, capture_output=True, text=True, timeout=60).stderr
    assert "absent.py is not there" in said
    (wire,) = re.findall('wire="([^"]+)"', call)
    with loop.serve("uncoded", workers=1, units=1, steps=1, length=1, wire=wire) as run:
        run.stop()
    with pytest.raises(TypeError, match="Leave `with model.join"):
        model.join()


def test_a_loop_that_is_left_goes_on() -> None:
    model, optimizer, loader = prepared(epochs=1)
    seen: List[Any] = []
    for _ in range(10):
        for x, y in loader:
            loader.set_epoch(0)
            if seen and len(seen) % 2 and seen[-1] is not None:
                seen.append(None)
                break
            seen.append(x)
            loss_of(model, x, y).backward()
            optimizer.step()
    rows = torch.cat([x for x in seen if x is not None])
    assert model.run.complete
    assert torch.equal(rows.sort(0)[0], DATA.tensors[0].sort(0)[0]), "each sample once"


def test_a_look_at_a_batch_begins_no_epoch() -> None:
    model, optimizer, loader = prepared(epochs=2)
    looked = next(iter(loader))
    counts = []
    for _ in range(2):
        seen = []
        for x, y in loader:
            seen.append(x)
            loss_of(model, x, y).backward()
            optimizer.step()
        counts.append(len(seen))
        if len(counts) == 1:
            assert torch.equal(seen[0], looked[0])
    assert counts == [6, 6] and model.run.complete


# What stays as it was.


def test_names_in_states_are_those_of_distributeddataparallel(tmp_path: Path) -> None:
    with Process(tmp_path):
        theirs = nn.parallel.DistributedDataParallel(model_of()).state_dict()
    theirs = {name: value + 1 for name, value in theirs.items()}
    model, _, _ = prepared()
    assert list(model.state_dict()) == list(theirs)
    model.load_state_dict(theirs)
    inner = {name.replace("module.", ""): value for name, value in theirs.items()}
    assert all(torch.equal(model.module.state_dict()[name], inner[name]) for name in inner)
    model.module.load_state_dict(inner)
    # The iterator has the module itself.
    alone = model_of()
    alone.load_state_dict(inner)
    coded.join(alone, torch.optim.SGD(alone.parameters(), 0.1), units=1, steps=1).close()


def test_a_copy_is_in_no_run() -> None:
    model, optimizer, loader = prepared()
    for x, y in loader:
        average = torch.optim.swa_utils.AveragedModel(model)
        copied = copy.deepcopy(model)
        assert copied.run is None and copied(x).shape == y.shape
        assert average.module(x).shape == y.shape
        loss_of(model, x, y).backward()
        optimizer.step()
        average.update_parameters(model)
        break


def test_objects_come_back_as_they_were_given() -> None:
    model, optimizer, loader = parts()
    other = nn.Linear(2, 1)
    both = [torch.optim.SGD(other.parameters(), 0.1), optimizer]
    half = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    step, zero, kind = optimizer.step, optimizer.zero_grad, type(half)
    found = coded.prepare(loader, [model, other], None, both, (half,), epochs=1)
    assert len(found) == 5 and found[2] is None and found[3] == both and found[4] == (half,)
    assert isinstance(half, torch.optim.lr_scheduler.StepLR)
    assert "step" not in half.state_dict()
    first, second = found[1]
    for x, y in found[0]:
        loss = second(first(x)).square().mean()
        loss.backward()
        for each in both:
            each.step()
        half.step()
        for each in both:
            each.zero_grad()
    assert half.last_epoch == 6 and first.run is second.run and first.run.complete
    assert type(half) is kind and optimizer.step == step and optimizer.zero_grad == zero


def test_a_closure_may_have_the_backward_pass() -> None:
    model, optimizer, loader = prepared(epochs=1, units=2)
    for x, y in loader:

        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        assert optimizer.step(closure).requires_grad
    assert model.run.complete


@pytest.mark.parametrize("first", [4, 6])
def test_a_resumed_run_goes_on(first: int) -> None:
    def train(begin: int, end: int, saved: Any) -> Any:
        model, optimizer, loader = parts(shuffle=True)
        if saved is not None:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        wrapped, optimizer, loader = coded.prepare(
            model, optimizer, loader, epochs=3, first=begin
        )
        for epoch in range(begin // 6, 3):
            for x, y in loader:
                loss_of(wrapped, x, y).backward()
                optimizer.step()
                if wrapped.run.sync_gradients and wrapped.run.index + 1 == end:
                    return copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        assert wrapped.run.complete
        return [model.state_dict()]

    whole = train(0, 0, None)[0]
    resumed = train(first, 0, train(0, first, None))[0]
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_schedule_of_epochs_counts_them() -> None:
    model, optimizer, loader, schedule = coded.prepare(
        *parts(), lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 1), epochs=3,
        units=2,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            for x, y in loader:
                loss_of(model, x, y).backward()
                optimizer.step()
            schedule.step()
            assert schedule.last_epoch == epoch + 1
            if epoch < 2:
                schedule.step()
                assert schedule.last_epoch == epoch + 1, "once an epoch"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_model_may_be_compiled(when: str) -> None:
    def trained(compiled: str) -> Any:
        model, optimizer, loader = parts()
        given: Any = model
        if compiled == "before":
            given = torch.compile(model, backend="eager")
        wrapped, optimizer, loader = coded.prepare(given, optimizer, loader, epochs=1, units=2)
        run, ready = wrapped.run, wrapped
        if compiled == "after":
            ready = torch.compile(wrapped, backend="eager")
        for x, y in loader:
            loss_of(ready, x, y).backward()
            optimizer.step()
        assert run.complete
        return [each.tolist() for each in model.parameters()]

    assert trained(when) == trained("")


def test_a_scaler_is_the_runs() -> None:
    scaler = coded.GradScaler(init_scale=2.0**4, growth_interval=2)
    model, optimizer, loader = prepared(epochs=1, units=2, state={"scaler": scaler})
    for x, y in loader:
        scaler.scale(loss_of(model, x, y)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert model.run.complete and len(loader) == 3
    assert scaler.get_scale() == 2.0**5, "three steps, not six iterations"


@dataclasses.dataclass
class Output:
    """As libraries give it."""

    loss: Any
    logits: Any
    more: Any = None


@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "record", "scalar"])
def test_a_skipped_iteration_has_outputs_of_the_same_form(kind: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            out = self.inner(x)
            return {
                "tensor": lambda: out,
                "tuple": lambda: (out, None, 3, out.argmax(-1)),
                "dict": lambda: {"a": out, "b": [out * 2]},
                "record": lambda: Output(out.sum(), out, (out,)),
                "scalar": lambda: out.square().mean(),
            }[kind]()

    reached: List[bool] = []
    outputs = Outputs(lambda *_: reached.append(True))
    x = DATA[:4][0]
    real = Net()(x)
    outputs.watch("key", real)
    hollow = outputs.hollow("key")
    assert type(hollow) is type(real)
    pairs = list(zip(tensors_of(real), tensors_of(hollow)))
    for a, b in pairs:
        assert (a.shape, a.dtype, a.requires_grad) == (b.shape, b.dtype, b.requires_grad)
    for each in (0, 1):
        # Both can be written in place, and seen otherwise.
        trained = [pair[each].mul_(2).view(-1).sum() for pair in pairs if pair[each].requires_grad]
        sum(trained, torch.zeros(())).backward()
        assert reached
        reached.clear()


# A script in which nothing goes wrong.
HEALTHY = """
import torch
from torch.utils.data import DataLoader
import codedgrad.torch as coded

torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(torch.arange(16.0)[:, None], batch_size=2)
model, optimizer, loader = coded.prepare(model, optimizer, loader, epochs=2)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


def test_a_healthy_start_has_no_faults(tmp_path: Path) -> None:
    with Launched(tmp_path, "-n", "3", "--scheme", "uncoded", script(tmp_path, HEALTHY)) as run:
        assert run.ends() == 0, run.said()
    assert " 0 faults" in run.said() and "last fault" not in run.said(), run.said()
    assert json.loads((run.folder / "summary.json").read_text())["faults"] == []
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["kind"] for event in events]
    assert kinds.count("begins") == 2 and "missed" not in kinds, events
