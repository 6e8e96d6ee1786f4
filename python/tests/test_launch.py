"""`codedgrad run`: scripts as workers of a run, started, looked after and ended by the program."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 120.0

# A worker that is late in some steps, and says what it has come to.
SCRIPT = """
import os, sys, time
import numpy as np
from codedgrad import loop

steps, begins, ends = (int(text) for text in sys.argv[1:4])
weights = np.zeros(2, dtype=np.float32)
run = loop.join([weights], units=4, steps=steps)
late = run.worker == 1
for step in run:
    for micro in step:
        time.sleep(0.05 if late and begins <= micro.step < ends else 0.01)
        micro.give([np.array([micro.unit, micro.step % 7], dtype=np.float32)])
    if step.applied:
        weights += step.gradients[0]
print("weights", *weights, flush=True)
"""


def environment() -> Dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CODEDGRAD_")}
    return {**kept, "OMP_NUM_THREADS": "1"}


class Launched:
    """A `codedgrad run` in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str):
        self.folder = folder / "run"
        self.output = folder / "out"
        self.errors = folder / "err"
        command = [sys.executable, "-m", "codedgrad", "run", "--out", str(self.folder), *arguments]
        with open(self.output, "wb") as output, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(LIMIT_SECONDS)

    def said(self) -> str:
        return self.output.read_text() + self.errors.read_text()

    def ends(self) -> int:
        try:
            return self.process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said()}") from None

    def records(self) -> List[Dict[str, Any]]:
        try:
            lines = (self.folder / "run.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert self.process.poll() is None, f"it has ended before {what}: {self.said()}"
            assert time.monotonic() < deadline, f"{what} does not come about: {self.said()}"
            time.sleep(0.02)

    def pid(self, worker: int) -> int:
        """The process of a worker, which its environment tells."""
        wanted = f"CODEDGRAD_WORKER={worker}".encode()
        log = f"CODEDGRAD_LOG={self.folder.resolve()}/".encode()
        for status in Path("/proc").glob("[0-9]*/environ"):
            try:
                variables = status.read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in variables and any(each.startswith(log) for each in variables):
                return int(status.parent.name)
        raise AssertionError(f"worker {worker} is not there: {self.said()}")


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def scheme_of(record: Dict[str, Any]) -> str:
    return str(record["using"]["scheme"])


def test_lateness_is_met_and_its_end_is_noticed(tmp_path: Path) -> None:
    begins, ends, steps = 30, 130, 330
    told = [script(tmp_path, SCRIPT), str(steps), str(begins), str(ends)]
    with Launched(tmp_path, "-n", "2", "--scheme", "auto:every=60", *told) as run:
        assert run.ends() == 0, run.said()
    records = run.records()
    assert [record["step"] for record in records] == list(range(steps))
    coded = [record["step"] for record in records if scheme_of(record) != "uncoded"]
    in_time = [step for step in coded if begins <= step <= begins + 60]
    assert in_time, run.said()
    why = str(records[in_time[0]]["using"]["why"])
    assert re.search(r"should take 0\.\d+ s per step instead of 0\.\d+ s uncoded", why), why
    assert why in run.said()
    assert scheme_of(records[-1]) == "uncoded", f"{coded}: {run.said()}"
    lines = {line for line in run.said().splitlines() if "weights" in line}
    batches = sum(step % 7 for step in range(steps))
    expected = f"weights {6.0 * steps / 4} {float(batches)}"
    assert lines == {f"[0] {expected}", f"[1] {expected}"}


def test_sigterm_of_the_launcher_makes_all_workers_leave(tmp_path: Path) -> None:
    told = [script(tmp_path, SCRIPT), "100000", "0", "0"]
    with Launched(tmp_path, "-n", "2", "--scheme", "groups:s=1", *told) as run:
        run.wait_for("a step", lambda: len(run.records()) > 5)
        pids = [run.pid(worker) for worker in range(2)]
        run.process.send_signal(signal.SIGTERM)
        assert run.ends() == 143, run.said()
    for worker, pid in enumerate(pids):
        assert not Path(f"/proc/{pid}").exists()
        log = (run.folder / f"worker-{worker}.log").read_text()
        assert f"worker {worker} was told to end (SIGTERM)" in log, log
        assert "Traceback" not in log, log


def test_ctrl_c_says_what_there_is_and_shows_no_traceback(tmp_path: Path) -> None:
    told = [script(tmp_path, SCRIPT), "100000", "0", "0"]
    with Launched(tmp_path, "-n", "2", "--scheme", "groups:s=1", *told) as run:
        run.wait_for("a step", lambda: len(run.records()) > 5)
        run.process.send_signal(signal.SIGINT)
        assert run.ends() == 130, run.said()
    said = run.said()
    assert "Traceback" not in said, said
    assert re.search(r"ended by Ctrl-C after step \d+ of 100000: .*run has the record", said), said
    for worker in range(2):
        log = (run.folder / f"worker-{worker}.log").read_text()
        told = re.search(r"interrupted \(Ctrl-C\), at .*train\.py:\d+", log)
        assert told or "the run is over" in log, log


LONG_UNIT = """
import time
import numpy as np
from codedgrad import loop

weights = np.zeros(2, dtype=np.float32)
for step in loop.join([weights], units=2, steps=100):
    for micro in step:
        if step.index == 5:
            print("long", flush=True)
            time.sleep(1000)
        micro.give([weights])
"""


def lives(pid: int) -> bool:
    try:
        # Of one that nobody has asked for its end yet it is empty.
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def test_a_launcher_that_is_killed_takes_its_workers_along(tmp_path: Path) -> None:
    """Also one that is in the middle of a unit, and would not look for its coordinator for long."""
    told = ["--scheme", "uncoded", script(tmp_path, LONG_UNIT)]
    with Launched(tmp_path, "-n", "2", *told) as run:
        run.wait_for("long units", lambda: run.said().count("long") == 2)
        pids = [run.pid(worker) for worker in range(2)]
        run.process.kill()
        run.process.wait()
        deadline = time.monotonic() + LIMIT_SECONDS
        while any(lives(pid) for pid in pids):
            assert time.monotonic() < deadline, "they go on"
            time.sleep(0.02)


def test_a_worker_that_is_told_to_end_is_not_started_again(tmp_path: Path) -> None:
    told = [script(tmp_path, SCRIPT), "60", "0", "0"]
    with Launched(tmp_path, "-n", "2", "--scheme", "groups:s=1", *told) as run:
        run.wait_for("a step", lambda: len(run.records()) > 5)
        os.kill(run.pid(1), signal.SIGTERM)
        assert run.ends() == 0, run.said()
    assert len(run.records()) == 60
    assert run.said().count("weights") == 1, run.said()


@pytest.mark.parametrize(
    "text, words",
    [
        ("print('hello')", ["train.py", "ended with status 0 without joining", "[0] hello"]),
        ("raise SystemExit(3)", ["train.py", "ended with status 3 without joining"]),
        ("import nothing_of_the_kind", ["train.py", "ModuleNotFoundError", "without joining"]),
    ],
)
def test_a_script_that_never_joins_is_named(tmp_path: Path, text: str, words: List[str]) -> None:
    with Launched(tmp_path, "-n", "2", script(tmp_path, text)) as run:
        assert run.ends() == 1, run.said()
    for word in words:
        assert word in run.said()


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Launched(tmp_path, "-n", "2", str(tmp_path / "nowhere.py")) as run:
        assert run.ends() == 2
    assert "nowhere.py" in run.said()


@pytest.mark.torch
def test_the_example_has_the_bits_of_one_process(tmp_path: Path) -> None:
    """A worker is killed and another stops for a while; it is started again, and takes part."""
    pytest.importorskip("torch")
    steps = 120
    sizes = ["--steps", str(steps), "--every", "1", "--rows", "4", "--context", "16"]
    sizes += ["--width", "32", "--layers", "1", "--heads", "2"]
    coded = str(EXAMPLES / "nanogpt_coded.py")
    alone = subprocess.run(
        [sys.executable, coded, *sizes],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    expected = alone.stdout.splitlines()[-1].split("sha256 ")[1]
    with Launched(tmp_path, "-n", "4", "--scheme", "groups:s=1", coded, *sizes) as run:
        run.wait_for("step 10", lambda: len(run.records()) > 10)
        os.kill(run.pid(2), signal.SIGKILL)
        run.wait_for("step 20", lambda: len(run.records()) > 20)
        stopped = run.pid(0)
        os.kill(stopped, signal.SIGSTOP)
        run.wait_for("step 30", lambda: len(run.records()) > 30)
        os.kill(stopped, signal.SIGCONT)
        assert run.ends() == 0, run.said()
    digests = re.findall(r"\[(\d)\] .*sha256 (\w+)", run.said())
    assert {worker for worker, _ in digests} >= {"0", "1", "3"}, run.said()
    assert {digest for _, digest in digests} == {expected}, run.said()
    assert "worker 2 was killed (SIGKILL)" in run.said(), run.said()


# What is wrong in worker 2 alone, or with one unit of step 10.
FAULTY = """
import os, sys
import numpy as np
from codedgrad import loop

def say(*words):
    # In one piece: what goes to standard error may come between two.
    sys.stdout.write(" ".join(map(str, words)) + chr(10))
    sys.stdout.flush()

mode, me = sys.argv[1], int(os.environ["CODEDGRAD_WORKER"])
weights = np.zeros(3, dtype=np.float32)
if mode == "init" and me == 2:
    weights += 1
if mode == "seeds":
    weights += np.float32(me)
units, steps = 8 if mode == "units" and me == 2 else 4, 20
if mode == "argument" and me == 2:
    steps = 0
seed = 7 if mode == "seed" and me == 2 else 0
run = loop.join([weights], units=units, steps=steps, seed=seed)
told = False
for step in run:
    for micro in step:
        gradient, loss = weights - micro.unit, 1.0
        if micro.step == 10 and micro.unit == 1:
            loss = float("nan")
            if mode != "loss":
                gradient = gradient * np.float32("nan")
        if mode == "gradient":
            micro.give([gradient])
        else:
            micro.give([gradient], loss)
    if step.applied:
        weights -= 0.1 * step.gradients[0]
    if step.index == 10 and mode != "gradient" and not step.resynced:
        say("totals", *step.totals)
        told = True
if mode != "gradient" and not told:
    say("not here at step 10")
say("digest", hex(run.digest()))
"""


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1"])
@pytest.mark.parametrize(
    "mode, words",
    [
        ("init", "worker 2 differs in parameters to begin with (.*); workers 0, 1, 3 agree"),
        ("units", "worker 2 differs in units of a batch .8, not 4.; workers 0, 1, 3 agree"),
        ("seed", "worker 2 differs in seed .7, not 0.; workers 0, 1, 3 agree"),
        ("seeds", "worker 0 and worker 1 differ in .*; worker 0 and worker 3 differ in parameters"),
        ("argument", "worker 2 cannot join: steps is 0: it must be 1 or more"),
    ],
)
def test_a_run_whose_workers_differ_ends_at_once(
    tmp_path: Path, scheme: str, mode: str, words: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAULTY)
    with Launched(tmp_path, "-n", "4", "--scheme", scheme, str(script), mode) as launched:
        assert launched.ends() == 1, launched.said()
        said = launched.said()
    assert re.search(f"error: nothing is trained: {words}", said), said
    assert "started again in" not in said, said
    for log in launched.folder.glob("worker-*.log"):
        assert log.read_text().count("Traceback") <= 1, log.read_text()
    assert "ValueError: " in said, said
    assert not list(launched.folder.glob("*.final"))


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1"])
@pytest.mark.parametrize("mode", ["loss", "both", "gradient"])
def test_a_loss_that_is_not_finite_ends_no_worker(tmp_path: Path, scheme: str, mode: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAULTY)
    with Launched(tmp_path, "-n", "4", "--scheme", scheme, str(script), mode) as launched:
        assert launched.ends() == 0, launched.said()
        said = launched.said()
    record = launched.records()[10]
    assert record["loss"] is None and len(launched.records()) == 20
    assert bool(record["refused"]) == (mode != "loss")
    assert record.get("nonfinite_scalars") == (1 if mode == "loss" else None)
    refused = "1 of 20 steps was refused (first: step 10)"
    assert (refused in said) == (mode != "loss"), said
    logs = [log.read_text() for log in launched.folder.glob("worker-*.log")]
    digests = {line for log in logs for line in log.splitlines() if line.startswith("digest")}
    assert len(logs) == 4 and len(digests) == 1, logs
    # Who is late takes over another's state, and then does not see the steps before it.
    assert sum("not here at step 10" in log for log in logs) <= 2, logs
    if mode != "gradient":
        odd = [log for log in logs if "totals nan\n" not in log and "not here at step 10" not in log]
        assert not odd, odd
