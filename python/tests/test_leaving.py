"""Workers that are told to end by SIGTERM without notice: they leave, and others go on at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy as np
import pytest

from codedgrad import loop
from runs import LIMIT_SECONDS, wait_until

UNITS, STEPS, LENGTH = 4, 6, 3
SIZES = {"units": UNITS, "steps": STEPS}
# A tenth of this is enough; whoever found out by waiting that a worker has left would need more.
AT_ONCE_SECONDS = 15.0

# What all scripts of workers begin with. `at` is called at each moment, with its name and step.
PRELUDE = f"""
import os, signal, sys, threading, time, warnings
import numpy as np
from codedgrad import loop

# Of forks in a process with threads.
warnings.simplefilter("ignore", DeprecationWarning)

def there():
    print("there", flush=True)

def train(at=lambda moment, step: None, catch=()):
    weights = np.zeros({LENGTH}, np.float32)
    with loop.join([weights], units={UNITS}, steps={STEPS}) as run:
        at("joined", -1)
        for step in run:
            at("step", step.index)
            for micro in step:
                try:
                    at("unit", micro.step)
                except catch:
                    pass
                micro.give([micro.generator().normal(size={LENGTH}) - weights])
            at("body", step.index)
            if step.applied:
                weights -= 0.5 * step.gradients[0]
    return weights.tobytes().hex()

def compute():
    there()
    while True:
        sum(range(1000))

def sleep(seconds={LIMIT_SECONDS}):
    there()
    time.sleep(seconds)
"""


def nothing(step: int) -> None:
    """What is done at a moment of a step."""


def train(
    where: Dict[str, Any],
    before: Callable[[int], object] = nothing,
    body: Callable[[int], object] = nothing,
) -> str:
    """What the scripts of the workers do, in this process; `before` the units of a step."""
    weights = np.zeros(LENGTH, np.float32)
    with loop.join([weights], **SIZES, **where) as run:
        for step in run:
            before(step.index)
            for micro in step:
                micro.give([micro.generator().normal(size=LENGTH) - weights])
            body(step.index)
            if step.applied:
                weights -= 0.5 * step.gradients[0]
    return weights.tobytes().hex()


@pytest.fixture(scope="module")
def expected() -> str:
    return train({})


class Job:
    """A run of two workers that goes on with one; this process and scripts are its workers."""

    def __init__(self) -> None:
        self.begun: List["subprocess.Popen[str]"] = []
        self.coordinator = loop.serve(
            "uncoded",
            workers=2,
            min_workers=1,
            length=LENGTH,
            max_wait=LIMIT_SECONDS,
            silence=LIMIT_SECONDS,
            **SIZES,
        )

    def where(self, worker: int) -> Dict[str, Any]:
        there = self.coordinator
        return {"address": there.address, "token": there.token, "worker": worker}

    def start(self, worker: int, script: str, **more: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script],
            env={
                **os.environ,
                "CODEDGRAD_NOTICE": "0",
                **self.coordinator.environment(worker=worker),
                **more,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.begun.append(process)
        return process

    def end(self) -> None:
        for process in self.begun:
            process.kill()
            process.communicate()
        self.coordinator.stop()
        self.coordinator.wait(LIMIT_SECONDS)


@pytest.fixture
def job() -> Iterator[Job]:
    made = Job()
    try:
        yield made
    finally:
        made.end()


class Other(threading.Thread):
    """The other worker, in a thread of this process; the rest as for `train`."""

    def __init__(self, job: Job, **moments: Callable[[int], object]):
        super().__init__(daemon=True)
        self.job, self.moments = job, moments
        self.bits = ""
        self.start()

    def run(self) -> None:
        self.bits = train(self.job.where(0), **self.moments)

    def ends(self) -> str:
        """The bits that it has when it is done."""
        self.join(LIMIT_SECONDS)
        assert not self.is_alive(), "a worker hangs"
        return self.bits


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def ends_in_order(
    process: "subprocess.Popen[str]", times: int = 1, apart: float = 0.0
) -> None:
    """SIGTERM ends the process with status 0, a line that says why, and nothing else."""
    time.sleep(0.1)
    for _ in range(times):
        process.send_signal(signal.SIGTERM)
        time.sleep(apart)
    out, errors = process.communicate(timeout=LIMIT_SECONDS)
    said = "codedgrad: worker 1 leaves the run: it was told to end (SIGTERM)\n"
    assert (process.returncode, out, errors) == (0, "", said), errors


MOMENTS = {
    "before any step": "train(lambda moment, step: moment == 'joined' and sleep())",
    "before the units": "train(lambda moment, step: (moment, step) == ('step', 2) and sleep())",
    "while it computes": "train(lambda moment, step: (moment, step) == ('unit', 2) and compute())",
    "in the body": "train(lambda moment, step: (moment, step) == ('body', 2) and compute())",
    "with a child that has its connections": """
def fork(moment, step):
    if (moment, step) == ("unit", 2):
        if not os.fork():
            os.close(1)
            os.close(2)
            time.sleep(20)
            os._exit(0)
        compute()
train(fork)
""",
    "where somebody catches it": """
def catching(moment, step):
    if (moment, step) == ("unit", 2):
        compute()
train(catching, catch=BaseException)
print("goes on")
""",
    "in another thread": """
weights = np.zeros(3, np.float32)
run = loop.join([weights], units=4, steps=6)
def work():
    for step in run:
        for micro in step:
            if step.index == 2:
                sleep(1)
            micro.give([micro.generator().normal(size=3) - weights])
        weights[:] -= 0.5 * step.gradients[0]
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_leaves_and_the_other_goes_on_at_once(
    moment: str, job: Job, expected: str
) -> None:
    process = job.start(1, MOMENTS[moment])
    other = Other(job)
    assert line_of(process) == "there"
    began = time.monotonic()
    ends_in_order(process)
    assert other.ends() == expected
    assert time.monotonic() < began + AT_ONCE_SECONDS, "it was waited for"
    assert job.coordinator.wait(LIMIT_SECONDS) is True


def test_a_worker_that_waits_for_others_leaves(job: Job, expected: str) -> None:
    left = threading.Event()
    process = job.start(1, "train(lambda moment, step: (moment, step) == ('unit', 2) and there())")
    other = Other(job, before=lambda step: step == 2 and left.wait(LIMIT_SECONDS))
    assert line_of(process) == "there"
    # Both of its units.
    assert line_of(process) == "there"
    ends_in_order(process)
    left.set()
    assert other.ends() == expected


@pytest.mark.parametrize("apart", [0.0, 0.0001, 0.002, 0.01])
def test_a_second_signal_at_once_changes_nothing(apart: float, job: Job) -> None:
    # As `timeout` has it: one to the process, one to its group.
    process = job.start(1, MOMENTS["while it computes"])
    Other(job)
    assert line_of(process) == "there"
    ends_in_order(process, 3, apart)


def test_a_later_second_signal_ends_what_does_not_end(job: Job) -> None:
    script = """
try:
    train(lambda moment, step: moment == "unit" and compute())
except loop.Left as left:
    print(left, left.code, flush=True)
    compute()
"""
    process = job.start(1, script)
    Other(job)
    assert line_of(process) == "there"
    process.send_signal(signal.SIGTERM)
    assert line_of(process) == "worker 1 leaves the run: it was told to end (SIGTERM) 0"
    assert line_of(process) == "there"
    time.sleep(1.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_SECONDS) == -signal.SIGTERM


CHILD = """
import multiprocessing
def child():
    there()
    time.sleep(60)
def fork(moment, step):
    if (moment, step) == ("unit", 2):
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        time.sleep(0.2)
        process.terminate()
        process.join(30)
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        print(process.exitcode, flush=True)
print(train(fork))
"""


def test_a_forked_child_is_ended_by_the_signal(job: Job, expected: str) -> None:
    process = job.start(1, CHILD)
    other = Other(job)
    out, errors = process.communicate(timeout=LIMIT_SECONDS)
    ended = str(-signal.SIGTERM)
    # Of two units.
    assert (out.split(), errors) == (["there", ended, "there", ended, expected], "")
    assert process.returncode == 0
    assert other.ends() == expected


THREAD = """
def work():
    train(lambda moment, step: moment == "unit" and sleep())
threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("script", ["thread", "alone", "over"])
def test_without_a_run_of_the_main_thread_the_signal_ends_the_process(
    script: str, job: Job, expected: str
) -> None:
    alone = "del os.environ['CODEDGRAD_ADDRESS'], os.environ['CODEDGRAD_TOKEN']\n"
    alone += "del os.environ['CODEDGRAD_WORKER']\n" + MOMENTS["while it computes"]
    process = job.start(1, {"thread": THREAD, "alone": alone, "over": "train(); sleep()"}[script])
    other: Optional[Other] = None if script == "alone" else Other(job)
    assert line_of(process) == "there"
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT_SECONDS) == -signal.SIGTERM
    assert process.communicate()[1] == ""
    if other is not None:
        assert other.ends() == expected


# Scripts that come late.


def test_a_script_that_comes_when_all_steps_are_decided_ends_with_them(
    job: Job, expected: str
) -> None:
    came = threading.Event()
    first = job.start(1, "train(lambda moment, step: step == 2 and os._exit(9))")
    other = Other(job, body=lambda step: step == STEPS - 1 and came.wait(LIMIT_SECONDS))
    assert first.wait(LIMIT_SECONDS) == 9
    wait_until(lambda: job.coordinator.decided == STEPS, "the last step")
    late = job.start(1, "print(train(lambda moment, step: moment == 'joined' and there()))")
    assert line_of(late) == "there"
    came.set()
    out, errors = late.communicate(timeout=LIMIT_SECONDS)
    assert (late.returncode, out, errors) == (0, f"{expected}\n", "")
    assert other.ends() == expected


def test_a_script_without_any_part_in_a_run_ends_quietly(job: Job) -> None:
    # The other worker has not come: nothing has begun.
    wait = "train(lambda moment, step: moment == 'joined' and (there(), sys.stdin.readline()))"
    process = job.start(1, f"{wait}\nprint('goes on untrained')")
    assert line_of(process) == "there"
    job.coordinator.stop()
    out, errors = process.communicate("\n", timeout=LIMIT_SECONDS)
    said = "the run was over before this worker had any part in it: its model is not trained"
    assert (process.returncode, out, errors) == (0, "", f"codedgrad: {said}\n")


# The handler, in this process.


def default() -> bool:
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def joined(coordinator: loop.Coordinator) -> loop.Run:
    where = {"address": coordinator.address, "token": coordinator.token}
    return loop.join([np.zeros(LENGTH, np.float32)], **SIZES, **where)


@contextlib.contextmanager
def served() -> Iterator[loop.Coordinator]:
    """The coordinator of a run of one worker."""
    coordinator = loop.serve("uncoded", workers=1, length=LENGTH, **SIZES)
    yield coordinator
    coordinator.stop()
    # A run that its worker has left could not go on.
    with contextlib.suppress(RuntimeError):
        coordinator.wait(LIMIT_SECONDS)


@pytest.fixture
def coordinator() -> Iterator[loop.Coordinator]:
    with served() as coordinator:
        yield coordinator
    assert default()


def test_the_handler_is_there_while_a_run_goes_on(coordinator: loop.Coordinator) -> None:
    assert default()
    run = joined(coordinator)
    for step in run:
        assert not default()
        for micro in step:
            micro.nothing()
    assert run.complete and default()


@pytest.mark.parametrize("end", ["close", "with", "break", "exception", "error", "events"])
def test_the_handler_goes_with_the_run(end: str, coordinator: loop.Coordinator) -> None:
    run = joined(coordinator)
    assert not default()
    if end == "close":
        run.close()
    elif end == "with":
        with run:
            assert not default()
    elif end == "break":
        for _ in run:
            break
    elif end == "exception":
        with pytest.raises(ZeroDivisionError):
            for _ in run:
                raise ZeroDivisionError
    elif end == "error":
        with pytest.raises(RuntimeError, match="not iterated over"):
            for _ in run:
                pass
    else:
        for _ in run.events():
            break
    assert default()


def test_several_runs_have_one_handler(coordinator: loop.Coordinator) -> None:
    with served() as second:
        runs = [joined(coordinator), joined(second)]
        runs[0].close()
        assert not default()
        runs[1].close()
        assert default()


def test_a_process_leaves_all_of_its_runs(
    coordinator: loop.Coordinator,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CODEDGRAD_NOTICE", "0")
    with served() as second:
        runs = [joined(coordinator), joined(second)]
        try:
            with pytest.raises(loop.Left) as left:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(LIMIT_SECONDS)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert left.value.code == 0
    assert [run.over for run in runs] == [True, True]
    assert capfd.readouterr().err == f"codedgrad: {left.value}\n" * 2


def test_a_handler_of_the_user_stays(coordinator: loop.Coordinator) -> None:
    seen = []
    mine = lambda number, frame: seen.append(number)  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    try:
        run = joined(coordinator)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: seen == [signal.SIGTERM], "the handler")
        for step in run:
            for micro in step:
                micro.nothing()
        assert run.complete and signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_handler_that_came_later_stays(coordinator: loop.Coordinator) -> None:
    run = joined(coordinator)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
