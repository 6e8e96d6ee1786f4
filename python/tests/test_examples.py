"""The examples: a plain loop and the same as a coded worker, in processes that meet with faults."""

import difflib
import hashlib
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Dict, Iterator, List, Sequence

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from codedgrad import loop  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PLAIN = EXAMPLES / "nanogpt.py"
CODED = EXAMPLES / "nanogpt_coded.py"
STEPS, UNITS, WORKERS = 60, 8, 4
SIZES = ["--steps", str(STEPS), "--units", str(UNITS), "--every", "1", "--warmup", "5"]
SIZES += ["--rows", "4", "--context", "16", "--width", "32", "--layers", "1", "--heads", "2"]

# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 120.0

# Runs an example whose every micro-batch sleeps: all the time if the worker is late, and as long as
# a file is there. Says when it has joined.
WRAPPER = """
import os, runpy, sys, time
import codedgrad.torch as coded
import torch
late, slow = float(os.environ["TEST_LATE"]), os.environ["TEST_SLOW"]
backward, join = torch.Tensor.backward, coded.join

def delayed(*args, **kwargs):
    time.sleep(late + 0.2 * os.path.exists(slow))
    return backward(*args, **kwargs)

def told(*args, **kwargs):
    run = join(*args, **kwargs)
    print("joined", flush=True)
    return run

torch.Tensor.backward, coded.join = delayed, told
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Worker:
    """A process that runs the coded example."""

    def __init__(self, folder: Path, name: str, environment: Dict[str, str], late: float):
        self.output, self.errors = folder / f"{name}.out", folder / f"{name}.err"
        others = {k: v for k, v in os.environ.items() if not k.startswith("CODEDGRAD_")}
        delays = {"TEST_LATE": str(late), "TEST_SLOW": str(folder / "slow")}
        command = [sys.executable, "-c", WRAPPER, str(CODED), *SIZES]
        with open(self.output, "wb") as output, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                command,
                env={**others, **environment, **delays},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    def lines(self) -> List[str]:
        return self.output.read_text().splitlines()

    def steps(self) -> int:
        """How many steps it has shown the loss after."""
        return sum(line.startswith("step ") for line in self.lines())

    def said(self) -> str:
        return self.output.read_text() + self.errors.read_text()

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Job:
    """Workers and the coordinator of a run."""

    def __init__(self, folder: Path, scheme: str, workers: int, length: int, **told: Any):
        self.folder, self.all = folder, []  # type: Path, List[Worker]
        self.coordinator = loop.serve(
            scheme, workers=workers, units=UNITS, steps=STEPS, length=length, **told
        )

    def start(self, worker: int, late: float = 0.0) -> Worker:
        name = f"{worker}-{len(self.all)}"
        started = Worker(self.folder, name, self.coordinator.environment(worker=worker), late)
        self.all.append(started)
        return started

    def slow(self, really: bool) -> None:
        """Makes steps so slow that the run does not end before something has happened."""
        file = self.folder / "slow"
        if really:
            file.touch()
        else:
            file.unlink()

    def wait_for(self, what: Callable[[], bool], alive: Sequence[Worker]) -> None:
        """Waits for something to happen while some workers must be alive."""
        begun = time.monotonic()
        while not what():
            assert time.monotonic() < begun + LIMIT_SECONDS, [worker.said() for worker in self.all]
            for worker in alive:
                assert worker.process.poll() is None, worker.said()
            time.sleep(0.02)

    def end(self) -> None:
        for worker in self.all:
            worker.end()
        self.coordinator.stop()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: List[Job] = []

    def make(*args: Any, **told: Any) -> Job:
        jobs.append(Job(tmp_path, *args, **told))
        return jobs[-1]

    yield make
    for made in jobs:
        made.end()


def results(workers: Sequence[Worker]) -> List[str]:
    """The last lines of workers that end well."""
    for worker in workers:
        assert worker.process.wait(LIMIT_SECONDS) == 0, worker.said()
    return [worker.lines()[-1] for worker in workers]


@pytest.fixture(scope="module")
def plain() -> ModuleType:
    """The plain example as a module."""
    spec = importlib.util.spec_from_file_location("nanogpt", PLAIN)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def length(plain: ModuleType) -> int:
    """Numbers of a gradient."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nanogpt.py", *SIZES])
        model = plain.GPT(plain.arguments())
    return sum(parameter.numel() for parameter in model.parameters())


def tree_sum(gradients: Sequence[Any]) -> Any:
    """Sums by the aligned binary tree: the blocks of 2^m that begin at multiples of 2^m."""
    if len(gradients) == 1:
        return gradients[0]
    half = 1 << (len(gradients) - 1).bit_length() - 1
    return tree_sum(gradients[:half]) + tree_sum(gradients[half:])


@pytest.fixture(scope="module")
def expected(plain: ModuleType) -> str:
    """The last line of a run, by PyTorch alone: each unit seeded, units added by the tree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["nanogpt.py", *SIZES])
        args = plain.arguments()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = plain.GPT(args)
    optimizer = plain.make_optimizer(model, args)
    scheduler = plain.make_scheduler(optimizer, args)
    parameters = list(model.parameters())
    for step in range(STEPS):
        units = []
        for unit in range(UNITS):
            content = struct.pack("<QQQ", 0, step, unit)
            digest = hashlib.blake2b(content, digest_size=8, person=b"unit").digest()
            torch.manual_seed(int.from_bytes(digest, "little"))
            model(*plain.get_batch(args)).backward()
            units.append([parameter.grad for parameter in parameters])
            optimizer.zero_grad(set_to_none=True)
        for parameter, gradients in zip(parameters, zip(*units)):
            parameter.grad = tree_sum(gradients) * (1 / UNITS)
        torch.nn.utils.clip_grad_norm_(parameters, args.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
    torch.set_num_threads(threads)
    return f"loss {plain.whole_loss(model, args):.4f}, sha256 {plain.parameters_hash(model)}"


def test_five_lines_make_a_loop_a_coded_one() -> None:
    before, after = PLAIN.read_text().splitlines(), CODED.read_text().splitlines()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    changed = [
        max(old_end - old, new_end - new)
        for kind, old, old_end, new, new_end in matcher.get_opcodes()
        if kind != "equal"
    ]
    assert sum(changed) <= 5
    # None of them is longer than is allowed to be written.
    assert max(map(len, after)) <= 100


def test_the_plain_example_trains(
    plain: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["nanogpt.py", *SIZES])
    plain.main()
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in lines[:-1]]
    assert len(losses) == STEPS and losses[-1] < losses[0] - 0.5, lines


def test_alone_it_has_the_bits_of_the_reference(expected: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CODEDGRAD_")}
    command = [sys.executable, str(CODED), *SIZES]
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.stdout.splitlines()[-1] == expected


def test_one_late_and_one_killed_and_started_again(
    expected: str, length: int, job: Callable[..., Job]
) -> None:
    # A log of four steps: who comes back takes over another one's state.
    made = job("groups:s=1", WORKERS, length, log_steps=4)
    workers = [made.start(worker, late=0.2 * (worker == 3)) for worker in range(WORKERS)]
    made.wait_for(lambda: made.coordinator.decided >= 15, workers)
    made.slow(True)
    killed = workers[1]
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait()
    assert killed.steps() < STEPS
    workers[1] = made.start(1)
    made.wait_for(lambda: workers[1].steps() > 0, workers)
    made.slow(False)
    assert results(workers) == [expected] * WORKERS
    assert made.coordinator.wait() is True
    assert workers[1].steps() < STEPS, "it took over a state"


def test_one_stopped_for_a_while(expected: str, length: int, job: Callable[..., Job]) -> None:
    made = job("groups:s=1", WORKERS, length)
    workers = [made.start(worker) for worker in range(WORKERS)]
    made.wait_for(lambda: made.coordinator.decided >= 10, workers)
    stopped = workers[2].process
    stopped.send_signal(signal.SIGSTOP)
    before = made.coordinator.decided
    made.wait_for(lambda: made.coordinator.decided >= before + 10, workers)
    made.slow(True)
    seen = workers[2].steps()
    stopped.send_signal(signal.SIGCONT)
    made.wait_for(lambda: workers[2].steps() > seen, workers)
    made.slow(False)
    assert results(workers) == [expected] * WORKERS
    assert made.coordinator.wait() is True


def test_ctrl_c_ends_a_worker_that_waits(length: int, job: Callable[..., Job]) -> None:
    # The second worker never comes: without the signal it waits for ever.
    made = job("uncoded", 2, length)
    worker = made.start(0)
    made.wait_for(lambda: worker.lines() == ["joined"], [worker])
    assert made.coordinator.wait(0.1) is None
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait(LIMIT_SECONDS) == -signal.SIGINT, worker.said()
    assert "KeyboardInterrupt" in worker.said()
    assert made.coordinator.decided == 0
