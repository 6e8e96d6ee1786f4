"""Scripts for DistributedDataParallel and the same as workers, in processes: lines and bits."""

from __future__ import annotations

import difflib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from codedgrad import loop  # noqa: E402
from test_launch import Launched  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 120.0
SMALL = "--epochs 3 --rows 4 --context 16 --width 16 --layers 1 --heads 2".split()


def changed(before: str, after: str) -> List[str]:
    """The lines that differ, each with its sign."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [each for each in lines if not each.startswith(("---", "+++", "@@"))]


def body(script: str, loop_line: str) -> str:
    """The loop's body."""
    lines = script.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == loop_line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    rest = lines[start + 1 :]
    end = next(i for i, line in enumerate(rest) if len(line) - len(line.lstrip()) <= indent)
    return "\n".join(rest[:end])


def test_no_line_of_the_loop_differs() -> None:
    plain, coded = [(EXAMPLES / f"ddp_{which}.py").read_text() for which in ("plain", "coded")]
    line = "for i, (x, y) in enumerate(loader):"
    assert body(plain, line) == body(coded, line) != ""
    # All but the text that says what it is.
    found = changed(plain.split('"""', 2)[2], coded.split('"""', 2)[2])
    assert sum(each.startswith("-") for each in found) <= 12
    assert sum(each.startswith("+") for each in found) <= 12


class Processes:
    """Some processes of a script, whose output is read at the end."""

    def __init__(self) -> None:
        self.all: List["subprocess.Popen[str]"] = []

    def start(self, command: List[str], **environment: str) -> None:
        others = {k: v for k, v in os.environ.items() if not k.startswith("CODEDGRAD_")}
        self.all.append(
            subprocess.Popen(
                [sys.executable, *command],
                env={**others, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=EXAMPLES,
            )
        )

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.kill()
            process.communicate()

    def outputs(self) -> List[str]:
        found = [process.communicate(timeout=LIMIT_SECONDS) for process in self.all]
        for process, (_, errors) in zip(self.all, found):
            assert process.returncode == 0, errors
        return [output for output, _ in found]


def hashes(outputs: List[str]) -> List[str]:
    return [output.split("sha256 ")[1].split()[0] for output in outputs]


# Runs a script and ends as soon as it is done. A thread of PyTorch's gloo may free its last tensor
# while Python shuts down, and ends the process by SIGABRT then, all its output written. For ranks of
# PyTorch alone: a worker of ours has to end well.
AS_RANK = """
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""


def under_ddp(script: Path, ranks: int, *flags: str) -> List[str]:
    with socket.socket() as probe, Processes() as processes:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        for rank in range(ranks):
            processes.start(
                ["-c", AS_RANK, str(script), *flags],
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
        return processes.outputs()


def coded(
    script: Path,
    scheme: str,
    workers: int,
    told: Dict[str, Any],
    *flags: str,
    late: int = -1,
    **environment: str,
) -> List[str]:
    serve = loop.serve(scheme, workers=workers, max_wait=LIMIT_SECONDS, **told)
    with serve as run, Processes() as all:
        for worker in range(workers):
            all.start(
                [str(script), *flags],
                CODEDGRAD_WORKERS=str(workers),
                PAUSE="0.1" if worker == late else "0",
                **run.environment(worker),
                **environment,
            )
        found = all.outputs()
        assert run.wait(LIMIT_SECONDS)
    return found


@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_workers_have_the_bits_of_two_ranks(accumulate: int) -> None:
    plain, twin = EXAMPLES / "ddp_plain.py", EXAMPLES / "ddp_coded.py"
    flags = [*SMALL, "--accumulate", str(accumulate)]
    ranks = under_ddp(plain, 2, *flags)
    told = dict(units=2, unit_samples=4 * accumulate, length=length_of(), steps=steps(accumulate))
    workers = coded(twin, "uncoded", 2, told, *flags)
    assert len(set(hashes(ranks + workers))) == 1
    # The losses, too, which one of them prints.
    said = [[line for line in out.splitlines() if "epoch" in line] for out in ranks + workers]
    assert said[0] and said[0] == [line for lines in said[2:] for line in lines]


def length_of(width: int = 16) -> int:
    """Numbers of a gradient of the small model."""
    shape = SimpleNamespace(context=16, layers=1, heads=2, width=width, dropout=0.0)
    return sum(each.numel() for each in nanogpt().GPT(shape).parameters())


def nanogpt() -> Any:
    spec = importlib.util.spec_from_file_location("nanogpt", EXAMPLES / "nanogpt.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(accumulate: int, workers: int = 2) -> int:
    samples = (len(nanogpt().DATA) - 17) // 4
    return 3 * int(samples // workers // (4 * accumulate))


# What changes in a script of nanoGPT's shape.
SHAPED = [
    ("import torch.distributed as dist\n", "import codedgrad.torch as coded\n"),
    ("from torch.nn.parallel import DistributedDataParallel as DDP\n", ""),
    ('dist.init_process_group("gloo")\nrank = dist.get_rank()\n', ""),
    ("torch.manual_seed(1337 + rank)\n", "torch.manual_seed(1337)\n"),
    (
        "model = DDP(model)\nwhile True:\n",
        'units = int(os.environ["UNITS"])\n'
        "model, optimizer = coded.prepare(model, optimizer, steps=max_iters, units=units)\n"
        "run = model.run\n"
        "for iter_num in run.iterations():\n",
    ),
    ("if rank == 0:", "if run.saver and run.sync_gradients:"),
    # An iteration need not decide a step: the run counts.
    ("    iter_num += 1\n    if iter_num >= max_iters:\n        break\n", ""),
    ("dist.destroy_process_group()\n", ""),
]


def shaped(folder: Path) -> List[Path]:
    """The script as it was, and as a worker."""
    plain = (Path(__file__).parent / "shaped.py").read_text()
    twin = plain
    for before, after in SHAPED:
        assert twin.count(before) == 1, before
        twin = twin.replace(before, after)
    found = [folder / "plain.py", folder / "twin.py"]
    for path, text in zip(found, (plain, twin)):
        path.write_text(f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n{text}")
    return found


def test_a_script_of_nanogpts_shape(tmp_path: Path) -> None:
    plain, twin = shaped(tmp_path)
    found = changed(plain.read_text(), twin.read_text())
    assert sum(each.startswith("-") for each in found) <= 12
    assert sum(each.startswith("+") for each in found) <= 12
    under_ddp(plain, 2)
    told = dict(steps=12, length=length_of(), units=4)
    calm = coded(twin, "uncoded", 2, told, UNITS="4")
    late = coded(twin, "queue:m=2", 2, told, late=1, UNITS="4")
    assert len(set(hashes(calm + late))) == 1
    # Each step's rate is said once, by one of them.
    said = [line for out in calm for line in out.splitlines() if line.startswith("iter")]
    assert [int(line.split()[1][:-1]) for line in said] == list(range(12))


# Kills a worker in its first life, in one of its backward passes, which take long enough for it to
# come back.
KILLS = """
import os, runpy, signal, sys, time
import torch
who, left = sys.argv[1], [int(sys.argv[2])]
backward = torch.Tensor.backward

def counted(*args, **kwargs):
    left[0] -= 1
    time.sleep(0.3)
    if not left[0] and (os.environ["CODEDGRAD_WORKER"], os.environ["CODEDGRAD_EPOCH"]) == (who, "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    return backward(*args, **kwargs)

torch.Tensor.backward = counted
sys.argv = sys.argv[3:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("who", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_comes_back(who: int, tmp_path: Path) -> None:
    path = tmp_path / "kills.py"
    path.write_text(KILLS)
    twin = str(EXAMPLES / "ddp_coded.py")
    command = ["-n", "2", "--scheme", "groups:s=1", sys.executable, str(path), str(who), "5", twin]
    short = [*SMALL, "--epochs", "1", "--rows", "8"]
    with Launched(tmp_path, *command, *short) as run:
        assert run.ends() == 0, run.said()
    logs = [(run.folder / f"worker-{k}.log").read_text() for k in range(2)]
    assert "is started again" in logs[who]
    ranks = under_ddp(EXAMPLES / "ddp_plain.py", 2, *short)
    assert len(set(hashes([*ranks, *logs]))) == 1


# Workers that would each begin with other parameters; one is killed before it computes anything.
BEGINS = """
import os, signal
import torch
import codedgrad.torch as coded

me, life = (os.environ[f"CODEDGRAD_{name}"] for name in ("WORKER", "EPOCH"))
torch.manual_seed(int(me))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer = coded.prepare(model, optimizer, steps=5)
if (me, life) == ("0", "0"):
    os.kill(os.getpid(), signal.SIGKILL)
for step in model.run.iterations():
    model(torch.ones(1, 2)).square().sum().backward()
    optimizer.step()
print("digest", model.run.digest())
"""


def test_worker_zero_may_be_killed_before_anybody_has_its_state(tmp_path: Path) -> None:
    path = tmp_path / "begins.py"
    path.write_text(BEGINS)
    with Launched(tmp_path, "-n", "2", "--scheme", "uncoded", str(path)) as run:
        assert run.ends() == 0, run.said()
    logs = [(run.folder / f"worker-{k}.log").read_text() for k in range(2)]
    assert "is started again" in logs[0]
    assert len({log.split("digest ")[1] for log in logs}) == 1


# A progress bar lies between the loop and its exception, which somebody catches.
BAR = """
import os, sys
import torch
import codedgrad.torch as coded

life = os.environ["CODEDGRAD_WORKER"], os.environ["CODEDGRAD_EPOCH"]

def bar(items):
    for item in items:
        yield item

def main():
    torch.manual_seed(1)
    model = coded.prepare(torch.nn.Linear(2, 2), steps=6)
    for step in bar(model.run.iterations()):
        if step == 3 and life == ("1", "0"):
            raise ValueError("a bad sample")
        model(torch.ones(1, 2)).sum().backward()

if sys.argv[1] == "raised":
    main()
else:
    try:
        main()
    except ValueError:
        sys.exit(1)
"""


@pytest.mark.parametrize("how", [pytest.param("raised", marks=pytest.mark.slow), "caught"])
def test_an_exception_behind_a_progress_bar_loses_no_run(how: str, tmp_path: Path) -> None:
    path = tmp_path / "bar.py"
    path.write_text(BAR)
    with Launched(tmp_path, "-n", "2", "--scheme", "uncoded", str(path), how) as run:
        assert run.ends() == 0, run.said()
    said = (run.folder / "coordinator.log").read_text()
    why = {"raised": "ValueError: a bad sample", "caught": "its loop was left within a generator"}
    assert f"worker 1: lost: unit 1 of batch 3 (sample 1): {why[how]}" in said


WAITS = """
import os, sys, time
import torch
import codedgrad.torch as coded

model = coded.prepare(torch.nn.Linear(2, 2), steps=3, notice=0.5)
for step in model.run.iterations():
    print("there", flush=True)
    if model.run.worker == 1:
        time.sleep(60)
    model(torch.ones(1, 2)).sum().backward()
"""


def test_sigterm_is_seen_while_a_step_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "waits.py"
    path.write_text(WAITS)
    told: Dict[str, Any] = dict(workers=2, units=2, steps=3, length=6)
    # The run cannot go on then; it may be stopped here before it has found that.
    why = suppress(RuntimeError)
    with why, loop.serve("uncoded", **told) as run, Processes() as both:
        for worker in range(2):
            both.start([str(path)], CODEDGRAD_WORKERS="2", **run.environment(worker))
        first = both.all[0]
        assert first.stdout is not None and first.stdout.readline() == "there\n"
        # It is in backward() by then, or will see the signal before.
        time.sleep(0.5)
        first.send_signal(signal.SIGTERM)
        _, errors = first.communicate(timeout=20)
        assert first.returncode == 0 and "leaves the run" in errors


def test_a_loop_that_is_left_says_so() -> None:
    text = WAITS.replace("steps=3", "steps=3, units=1")
    with Processes() as processes:
        processes.start(["-c", text + "    break\n"])
        _, errors = processes.all[0].communicate(timeout=LIMIT_SECONDS)
        assert processes.all[0].returncode == 0
    assert "ends with 1 of 3 steps" in errors


@pytest.mark.parametrize("scheme", ["queue:m=2", "auto"])
def test_units_are_as_many_as_workers_or_told(scheme: str, tmp_path: Path) -> None:
    path = tmp_path / "short.py"
    path.write_text(WAITS.replace("time.sleep(60)", "pass"))
    with Launched(tmp_path, "-n", "2", "--scheme", scheme, str(path)) as run:
        status = run.ends()
        said = run.said()
    if scheme == "auto":
        assert status == 0, said
        return
    assert status != 0
    logs = "".join(each.read_text() for each in run.folder.glob("worker-*.log"))
    assert "2 units cannot be cut into 4 shares" in logs and "queue:m needs m for each" in logs
