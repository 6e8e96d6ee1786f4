"""Workers that are told to end and have time for it: nothing of theirs is computed again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np
import pytest

from codedgrad import loop
from codedgrad._core.joining import NOTICE, NOTICE_SECONDS
from runs import LIMIT_SECONDS
from test_launch import Launched, environment, script
from test_leaving import AT_ONCE_SECONDS, STEPS, Job, expected, train

assert expected  # a fixture

# A worker that is told to end in the middle of its third step.
LATE_IN_A_UNIT = """
def at(moment, step):
    if (moment, step) == ("unit", 2):
        there()
        time.sleep(0.5)
    elif (moment, step) == ("body", 2):
        print("leaving", RUN.leaving, flush=True)

joined = loop.join
def join(*args, **more):
    global RUN
    RUN = joined(*args, **more)
    return RUN
loop.join = join
train(at)
print("never", flush=True)
"""


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.end()


def others(job: Job) -> "Dict[str, Any]":
    """Where this process is the other worker, whose steps last a while."""
    return job.where(0)


def test_a_worker_finishes_its_task_and_is_let_go(job: Job, expected: str) -> None:
    process = job.start(1, LATE_IN_A_UNIT, CODEDGRAD_NOTICE="20")

    def tell(step: int) -> None:
        if step == 2:
            assert process.stdout is not None and process.stdout.readline() == "there\n"
            process.send_signal(signal.SIGTERM)
            # Of the same order: schedulers send one to the process and one to its group.
            process.send_signal(signal.SIGTERM)

    assert train(others(job), before=tell) == expected
    out, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, errors
    assert out.splitlines()[-1:] == ["leaving True"], errors
    assert "worker 1 was told to end (SIGTERM): it finishes its task" in errors
    assert "Traceback" not in errors
    assert job.coordinator.decided == STEPS


@pytest.mark.parametrize("again", [False, True])
def test_its_time_is_over_or_it_is_told_again(job: Job, expected: str, again: bool) -> None:
    stuck = 'train(lambda moment, step: sleep() if (moment, step) == ("unit", 2) else None)'
    process = job.start(1, stuck, CODEDGRAD_NOTICE="60" if again else "0.3")

    def tell(step: int) -> None:
        if step == 2:
            assert process.stdout is not None and process.stdout.readline() == "there\n"
            process.send_signal(signal.SIGTERM)
            if again:
                time.sleep(1.2)
                process.send_signal(signal.SIGTERM)

    began = time.monotonic()
    assert train(others(job), before=tell) == expected
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, errors
    assert "worker 1 leaves the run: it was told to end (SIGTERM)" in errors
    assert time.monotonic() - began < AT_ONCE_SECONDS


def test_a_file_is_as_good_as_a_signal(job: Job, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "notice"
    process = job.start(1, LATE_IN_A_UNIT.replace("0.5", "2.5"), CODEDGRAD_NOTICE_FILE=str(file),
                        CODEDGRAD_NOTICE="20")  # fmt: skip

    def tell(step: int) -> None:
        if step == 2:
            assert process.stdout is not None and process.stdout.readline() == "there\n"
            file.touch()

    assert train(others(job), before=tell) == expected
    out, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, out.splitlines()[-1:]) == (0, ["leaving True"]), errors


@pytest.mark.parametrize("notice", [-1.0, float("nan"), 1e9])
def test_a_notice_is_a_number_of_seconds(notice: float) -> None:
    with pytest.raises(ValueError, match="notice is .*: seconds are needed, 0 to 1e\\+06"):
        loop.join([np.zeros(1, np.float32)], units=1, steps=1, address="127.0.0.1:1", notice=notice)


def test_the_launcher_gives_as_long_as_a_worker_takes_by_itself() -> None:
    told = [sys.executable, "-m", "codedgrad", "run", "--help"]
    said = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    flag = said.split("--notice <SECONDS>")[1].split("\n      --")[0]
    assert NOTICE in flag and f"or {NOTICE_SECONDS:g}]" in " ".join(flag.split())


# A script that saves when its job may be preempted, and goes on from there.
SAVES = """
import json, os, sys, time
import numpy as np
from codedgrad import loop

path, steps = sys.argv[1], 40
weights, first = np.zeros(2, np.float32), 0
if os.path.exists(path):
    kept = np.load(path)
    weights, first = kept["weights"].astype(np.float32), int(kept["next"])
with loop.join([weights], units=4, steps=steps, first=first) as run:
    for step in run:
        for micro in step:
            time.sleep(0.02)
            micro.give([micro.generator().normal(size=2) - weights])
        if step.applied:
            weights -= np.float32(0.1) * step.gradients[0]
        if run.saver and run.leaving:
            np.savez(path + ".new.npz", weights=weights, next=step.index + 1)
            os.replace(path + ".new.npz", path)
            print("saved", flush=True)
if run.saver:
    print("weights", weights.tobytes().hex(), flush=True)
"""

# The same of a PyTorch model.
SAVES_A_MODEL = """
import os, sys, time
import torch
import codedgrad.torch as coded

path, steps = sys.argv[1], 40
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
first = 0
if os.path.exists(path):
    kept = torch.load(path)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    first = kept["next"]
with coded.join(model, optimizer, units=4, steps=steps, first=first) as run:
    for step in run:
        for micro in step:
            time.sleep(0.02)
            x = torch.randn(4, 3)
            torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if run.saver and run.leaving:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**kept, "next": step.index + 1}, path + ".new")
            os.replace(path + ".new", path)
            print("saved", flush=True)
if run.saver:
    bits = torch.cat([each.detach().flatten() for each in model.parameters()])
    print("weights", bits.numpy().tobytes().hex(), flush=True)
"""
SCRIPTS = [SAVES, pytest.param(SAVES_A_MODEL, marks=pytest.mark.torch)]


def weights_of(run: Launched) -> List[str]:
    return [line for line in run.said().splitlines() if "weights " in line]


@pytest.mark.parametrize("saves", SCRIPTS, ids=["arrays", "model"])
@pytest.mark.parametrize("told", ["run", "workers"])
def test_a_preempted_job_goes_on_where_it_was_when_it_is_queued_again(
    tmp_path: Path, saves: str, told: str
) -> None:
    def launched(name: str, state: str) -> Launched:
        folder = tmp_path / name
        folder.mkdir()
        text = script(folder, saves)
        return Launched(folder, "-n", "3", "--scheme", "uncoded", "--notice", "10", text, state)

    with launched("whole", str(tmp_path / "whole.npz")) as whole:
        assert whole.ends() == 0, whole.said()
    state = tmp_path / "state.npz"
    with launched("first", str(state)) as first:
        first.wait_for("some steps", lambda: len(first.records()) > 5)
        began = time.monotonic()
        if told == "run":
            first.process.terminate()
        else:
            for pid in [first.pid(worker) for worker in range(3)]:
                os.kill(pid, signal.SIGTERM)
        assert first.ends() == 143, first.said()
        # A body that runs when the signal comes may save, and the body of the last step does.
        saved = [line for line in first.said().splitlines() if line.endswith("] saved")]
        assert len(set(saved)) == 1 and len(saved) <= 2, first.said()
        assert time.monotonic() - began < 10
        events = (first.folder / "events.jsonl").read_text()
        assert "lost" not in {json.loads(line)["kind"] for line in events.splitlines()}, events
    assert state.exists(), first.said()
    with launched("again", str(state)) as again:
        assert again.ends() == 0, again.said()
    digests = [line.split()[-1] for run in (whole, again) for line in weights_of(run)]
    assert len(digests) == 2 and digests[0] == digests[1], (whole.said(), again.said())


@pytest.mark.parametrize("saves", SCRIPTS, ids=["arrays", "model"])
def test_workers_of_a_run_come_and_go(tmp_path: Path, saves: str) -> None:
    told = ["-n", "2..4", "--scheme", "uncoded", "--join-wait", "60", "--settle", "0.5"]
    # Who is started again with PyTorch takes seconds for that.
    steps = 150 if saves == SAVES else 600
    longer = saves.replace("steps = sys.argv[1], 40", f"steps = sys.argv[1], {steps}")
    text = script(tmp_path, longer)
    with Launched(tmp_path, *told, text, str(tmp_path / "none.npz")) as run:
        events = run.folder / "events.jsonl"

        def happenings() -> List[Tuple[str, int]]:
            lines = [json.loads(line) for line in events.read_text().splitlines()]
            return [(each["kind"], each["worker"]) for each in lines]

        def happened(kind: str, worker: int) -> bool:
            return (kind, worker) in happenings()

        # A worker can be taken out only once the one that is back has its place in the plan.
        def back_in_the_plan() -> bool:
            all_of_it = happenings()
            since = all_of_it.index(("join", 2)) if ("join", 2) in all_of_it else len(all_of_it)
            return any(kind == "replanned" for kind, _ in all_of_it[since:])

        run.wait_for("some steps", lambda: len(run.records()) > 5)
        os.kill(run.pid(3), signal.SIGTERM)
        run.wait_for("one that leaves", lambda: happened("left", 3))
        os.kill(run.pid(2), signal.SIGKILL)
        run.wait_for("one that is back", back_in_the_plan)
        (run.folder / "drain").write_text("1\n")
        run.wait_for("one that is drained", lambda: happened("drained", 1))
        assert run.ends() == 0, run.said()
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        assert not any(each["kind"] == "lost" and each["worker"] != 2 for each in lines), lines
        records = run.records()
        assert [each["step"] for each in records[-3:]] == [steps - 3, steps - 2, steps - 1]
    assert len(weights_of(run)) == 1


def served(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """A coordinator whose workers are started by hand."""
    told = [sys.executable, "-m", "codedgrad", "serve", *arguments]
    with open(folder / "err", "ab") as errors:
        return subprocess.Popen(
            told, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stderr=errors
        )


@pytest.mark.parametrize("seats", ["1..2", "2"])
@pytest.mark.parametrize("notice", ["0", "1"])
def test_a_run_whose_workers_are_all_told_to_leave_is_not_at_its_end(
    tmp_path: Path, seats: str, notice: str
) -> None:
    steps, run = 150, tmp_path / "run"
    text = script(tmp_path, SAVES.replace("steps = sys.argv[1], 40", f"steps = sys.argv[1], {steps}"))

    def worker(number: int) -> "subprocess.Popen[bytes]":
        where = {
            "CODEDGRAD_ADDRESS": (run / "address").read_text().strip(),
            "CODEDGRAD_TOKEN_FILE": str(run / "token"),
            "CODEDGRAD_WORKER": str(number),
            "CODEDGRAD_NOTICE": notice,
        }
        told = [sys.executable, text, str(tmp_path / "state.npz")]
        return subprocess.Popen(told, env={**environment(), **where})

    def wait_for(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {(tmp_path / 'err').read_text()}"
            time.sleep(0.02)

    def records() -> List[str]:
        return (run / "run.jsonl").read_text().splitlines() if (run / "run.jsonl").exists() else []

    flags = ["--workers", seats, "--scheme", "uncoded", "--join-wait", "60", "--return-wait", "2"]
    serve = served(tmp_path, *flags, "--out", "run")
    wait_for(lambda: bool((run / "address").exists() and (run / "address").read_text()), "address")
    workers = [worker(0), worker(1)]
    wait_for(lambda: len(records()) > 5, "some steps")
    for each in workers:
        each.terminate()
        time.sleep(0.3)
    assert [each.wait(LIMIT_SECONDS) for each in workers] == [0, 0]
    assert serve.wait(LIMIT_SECONDS) == 143, (tmp_path / "err").read_text()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["outcome"] == "stopped" and summary["steps"] < steps, summary
    again = served(tmp_path, "--resume", "run")
    workers = [worker(0), worker(1)]
    assert again.wait(LIMIT_SECONDS) == 0, (tmp_path / "err").read_text()
    assert [each.wait(LIMIT_SECONDS) for each in workers] == [0, 0]
    assert [json.loads(line)["step"] for line in records()] == list(range(steps))
