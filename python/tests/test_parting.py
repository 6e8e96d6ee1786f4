"""Scripts that raise exceptions, or leave: what the run does, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest

from codedgrad import loop
from codedgrad._core.loops import loop_of
from runs import LIMIT_SECONDS, together
from test_launch import Launched, environment, script

STEPS, AT = 12, 6

# Does `how` at step AT, on worker `who` or on all (-1); what is not a leaving, in first lives alone.
SCRIPT = f"""
import os, sys
import numpy as np
from codedgrad import loop

how, who = sys.argv[1], int(sys.argv[2])
first = os.environ.get("CODEDGRAD_EPOCH", "0") == "0"
weights = np.zeros(3, dtype=np.float32)
run = loop.join([weights], units=4, steps={STEPS}, unit_samples=2)
its = who in (-1, run.worker)
for step in run:
    for micro in step:
        if step.index == {AT} and micro.unit == 1 and (
            how == "always" or its and how == "once" and first
        ):
            raise ValueError("corrupt sample 123")
        if its and step.index == {AT} and how == "exit":
            sys.exit(0)
        if its and step.index == {AT} and how == "fail" and first:
            sys.exit(3)
        micro.give([weights - micro.generator().normal(size=3).astype(np.float32)])
    if its and step.index == {AT}:
        if how == "body" and first:
            raise ZeroDivisionError("in the body")
        if how == "break":
            break
        if how == "close":
            run.close()
            break
    if step.applied:
        weights -= np.float32(0.1) * step.gradients[0]
print("digest", run.complete, hex(run.digest()), flush=True)
"""


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = script(tmp_path_factory.mktemp("alone"), SCRIPT)
    told = [sys.executable, path, "nothing", "-1"]
    made = subprocess.run(told, env=environment(), capture_output=True, text=True, check=True)
    return made.stdout.strip()


def launched(folder: Path, scheme: str, how: str, who: int, *options: str) -> Launched:
    told = [script(folder, SCRIPT), how, str(who)]
    return Launched(folder, "-n", "4", "--scheme", scheme, *options, *told)


def digests(run: Launched) -> List[str]:
    return re.findall(r"\[\d\] (digest .*)", run.said())


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1", "queue:m=1", "ring:reach=2"])
@pytest.mark.parametrize("how", ["once", "body", "fail"])
def test_an_exception_costs_no_step(scheme: str, how: str, tmp_path: Path, digest: str) -> None:
    # Whoever computes the unit fails in its first life.
    who = -1 if how == "once" else 1
    with launched(tmp_path, scheme, how, who) as run:
        assert run.ends() == 0, run.said()
    assert [record["refused"] for record in run.records()] == [[]] * STEPS
    assert set(digests(run)) == {digest}, run.said()
    if scheme == "uncoded" and how == "once":
        assert "unit 1 of batch 6 (samples 2 to 3): ValueError: corrupt sample 123" in run.said()
    # Other schemes may be through with the run before they hear of it.
    if scheme == "uncoded" and how == "body":
        assert "worker 1: lost: ZeroDivisionError: in the body" in run.said()


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1"])
@pytest.mark.parametrize("tries", [3, 2])
def test_a_unit_that_always_fails_is_named(scheme: str, tries: int, tmp_path: Path) -> None:
    options = [] if tries == 3 else ["--unit-tries", str(tries)]
    with launched(tmp_path, scheme, "always", -1, *options) as run:
        assert run.ends() == 1, run.said()
    said = f"{tries} times a worker was lost while it computed unit 1 of batch 6 (samples 2 to 3)"
    assert said in run.said(), run.said()
    assert "said: ValueError: corrupt sample 123" in run.said(), run.said()
    assert len(run.records()) == AT


@pytest.mark.parametrize("how", ["break", "close", "exit"])
def test_who_leaves_is_named_at_once_and_not_started_again(how: str, tmp_path: Path) -> None:
    waits = ["--return-wait", "600"]
    with launched(tmp_path, "uncoded", how, 1, *waits) as run:
        assert run.ends() == 1, run.said()
    assert "workers {1} have left the run and do not come back" in run.said(), run.said()
    assert "worker 1: has left the run" in run.said() and "started again" not in run.said()


@pytest.mark.parametrize("how", ["break", "close", "exit"])
def test_others_do_what_somebody_leaves(how: str, tmp_path: Path, digest: str) -> None:
    with launched(tmp_path, "groups:s=1", how, 1) as run:
        assert run.ends() == 0, run.said()
    assert digest in digests(run) and "started again" not in run.said(), run.said()


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1"])
@pytest.mark.parametrize("how", ["break", "close", "exit"])
def test_all_who_leave_after_a_step_end_the_run(scheme: str, how: str, tmp_path: Path) -> None:
    with launched(tmp_path, scheme, how, -1) as run:
        assert run.ends() == 0, run.said()
    decided = len(run.records())
    assert AT <= decided <= AT + 1 and "started again" not in run.said(), run.said()


# Does `how` from step AT on, in each of its lives, on worker `who` or on all (-1).
AGAIN = f"""
import sys, time
import numpy as np
from codedgrad import loop

how, who, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
weights = np.zeros(3, dtype=np.float32)
run = loop.join([weights], units=4, steps=600)
for step in run:
    for micro in step:
        its = who in (-1, run.worker) and micro.step >= at
        time.sleep(0.02)
        if its and how == "break":
            break
        if its and how == "unit":
            raise ValueError("corrupt sample")
        numbers = 4 if its and how == "shape" else 3
        micro.give([np.zeros(numbers, np.float32)])
    if who in (-1, run.worker) and step.index >= at and how == "body":
        raise ZeroDivisionError("in the body")
    if step.applied:
        weights -= step.gradients[0]
"""


def again(folder: Path, scheme: str, how: str, who: int, at: int, *options: str) -> Launched:
    told = [script(folder, AGAIN), how, str(who), str(at)]
    return Launched(folder, "-n", "4", "--scheme", scheme, *options, *told)


MISUSE = {
    "break": "RuntimeError: step 6 was left before its micro-batches were done: do not `break` out",
    "shape": "ValueError: gradient 0 of unit ",
}


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1", "queue:m=1"])
@pytest.mark.parametrize("how, who", [("break", 1), ("break", -1), ("shape", 1)])
def test_a_script_that_is_wrong_ends_the_run(
    scheme: str, how: str, who: int, tmp_path: Path
) -> None:
    with again(tmp_path, scheme, how, who, AT) as run:
        assert run.ends() == 1, run.said()
    errors = [line for line in run.said().splitlines() if line.startswith("error: step ")]
    words = MISUSE[how].split(" 6 ")[-1]
    assert len(errors) == 1 and words in " ".join(run.said().split()), run.said()
    assert ": started again in" not in run.said(), run.said()
    assert len(run.records()) < 50, "the others do not go on"


@pytest.mark.parametrize("scheme", ["uncoded", "groups:s=1"])
@pytest.mark.parametrize("how", ["body", "unit"])
def test_what_fails_again_and_again_on_one_worker_ends_the_run(
    scheme: str, how: str, tmp_path: Path
) -> None:
    with again(tmp_path, scheme, how, 1, AT) as run:
        assert run.ends() == 1, run.said()
    said = " ".join(run.said().split())
    error = {"body": "ZeroDivisionError: in the body", "unit": "ValueError: corrupt sample"}[how]
    times = "3 times" in said and ("train.py:" in said or "it computed unit" in said)
    assert times and error in said.split("error: step ")[1], run.said()


def test_the_error_that_all_have_is_why_the_run_ends(tmp_path: Path) -> None:
    with again(tmp_path, "uncoded", "body", -1, AT) as run:
        assert run.ends() == 1, run.said()
    headline = next(line for line in run.said().splitlines() if line.startswith("error: "))
    assert "ZeroDivisionError" in headline and len(run.records()) == AT + 1, run.said()


@pytest.mark.parametrize("restarts, words", [("10", "2 times at train.py:"), ("0", "the scheme needs worker 1")])
def test_before_the_first_step_nobody_waits_for_who_fails(
    restarts: str, words: str, tmp_path: Path
) -> None:
    options = ["--restarts", restarts, "--join-wait", "60", "--return-wait", "100"]
    with again(tmp_path, "uncoded", "unit", 1, 0, *options) as run:
        assert run.ends() == 1, run.said()
    said = " ".join(run.said().split())
    assert words in said and "ValueError: corrupt sample" in said, run.said()


# What is said of a loop that is left.


class Oops(Exception):
    pass


def unit_fails(run: loop.Run) -> None:
    for step in run:
        for micro in step:
            if step.index == 2:
                raise Oops(f"in unit {micro.unit}\nand more")
            micro.nothing()


def unit_of_an_event_fails(run: loop.Run) -> None:
    for event in run.events():
        if isinstance(event, loop.Compute):
            for micro in event:
                if event.step == 2:
                    raise Oops(f"in unit {micro.unit}")
                micro.nothing()


def gradient_is_wrong(run: loop.Run) -> None:
    for step in run:
        for micro in step:
            micro.give([np.zeros(3 if step.index < 2 else 4)])


def within_with(run: loop.Run) -> None:
    with run:
        for step in run:
            for micro in step:
                micro.nothing()
            if step.index == 2:
                raise Oops("in the body")


def around(iterable: Any) -> Any:
    """As progress bars do it."""
    for each in iterable:
        yield each


def hidden(run: loop.Run) -> None:
    for step in around(run):
        for micro in around(step):
            if step.index == 2:
                raise Oops("unseen")
            micro.nothing()


@pytest.mark.parametrize(
    "body, words",
    [
        (unit_fails, "unit 0 of batch 2 (sample 0); worker 0, the last one.*Oops: in unit 0"),
        (unit_of_an_event_fails, "unit 0 of batch 2 (sample 0).*Oops: in unit 0"),
        (gradient_is_wrong, "unit 0 of batch 2 (sample 0).*ValueError: gradient 0 of unit 0"),
        (within_with, "failed 1 times at test_parting.py:.*Oops: in the body"),
        (hidden, "unit 0 of batch 2 (sample 0).*its loop was left within a generator"),
    ],
)
def test_the_unit_and_the_exception_are_told(body: Any, words: str) -> None:
    """In a run of one worker, of which nobody has the state: it ends when the worker is lost."""

    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> str:
        run = loop.join([(3,)], units=1, steps=4, save=bytes, load=lambda state: None, **where)
        with pytest.raises((Oops, ValueError)):
            body(run)
        assert run.over
        with pytest.raises(RuntimeError) as ended:
            coordinator.wait(LIMIT_SECONDS)
        return str(ended.value)

    sizes: Dict[str, Any] = {"workers": 1, "units": 1, "steps": 4, "length": 3}
    with loop.serve("uncoded", unit_tries=1, **sizes) as coordinator:
        where = {"address": coordinator.address, "token": coordinator.token, "worker": 0}
        said = work(0, where, coordinator)
    assert re.search(re.escape(words).replace(r"\.\*", ".*"), said), said


def test_an_exception_is_not_taken_for_a_break_where_a_generator_hides_it() -> None:
    """As from Python 3.13 on, where a generator around a loop is closed without being resumed."""

    def ask(items: Iterator[int]) -> Iterator[int]:
        yield next(items)

    told: List[Any] = []
    for asked in (next, lambda items: list(ask(items))):
        items = loop_of(iter(range(3)), told.append)
        asked(items)
        del items
    assert [type(error) for error in told] == [type(None), GeneratorExit]


def test_workers_are_told_why_the_run_is_over() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        run = loop.join([(3,)], units=2, steps=9, save=bytes, load=lambda state: None, **where)
        for step in run:
            for micro in step:
                micro.nothing()
            if k == 1 and step.index == 3:
                run.finish()

    with pytest.warns(RuntimeWarning, match="of 9 steps: a worker has finished it"):
        together("uncoded", work, workers=2, units=2, steps=9, length=3)
