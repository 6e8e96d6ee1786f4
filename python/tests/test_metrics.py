"""What a run tells loggers and profilers: `run.metrics()`, and spans in a trace of torch.profiler."""

from __future__ import annotations

import json
import pathlib
import re
import time
from typing import Any, Dict, List, Set

import numpy as np
import pytest
from codedgrad import loop

from runs import together

RECORDS = pathlib.Path(__file__).parents[2] / "docs" / "records.md"
_SPANS = ("hand_over", "wait", "take_back", "apply", "state")
#: Phases that one after the other are a step.
PHASES = ("compute", "hand_over", "exposed_wait", "take_back", "apply", "state")


def documented() -> Set[str]:
    return set(re.findall(r"`(coded/\w+)`", RECORDS.read_text()))


def train(where: Dict[str, Any], micro_seconds: float, steps: int = 12) -> List[Dict[str, float]]:
    parameters = np.zeros(18, np.float32)
    found: List[Dict[str, float]] = []
    with loop.join([parameters], units=8, steps=steps, **where) as run:
        for step in run:
            for micro in step:
                time.sleep(micro_seconds)
                micro.give([np.ones(18, np.float32)])
            if step.applied:
                parameters += 1
                found.append(run.metrics())
                assert run.metrics() == found[-1], "they are of the step, not of the moment"
                time.sleep(0.002)
    return found


def test_phases_are_the_step_and_the_table_names_all_numbers() -> None:
    found = train({}, 0.001)
    assert len(found) == 12
    for step, numbers in enumerate(found):
        # Of a process that trains alone the run's numbers are those of one worker, too.
        assert documented() == set(numbers)
        assert all(type(number) is float for number in numbers.values())
        assert numbers["coded/applied_steps"] == step + 1
        assert numbers["coded/work"] == 1 and numbers["coded/late_workers"] == 0
        assert numbers["coded/skipped_steps"] == numbers["coded/state_transfers"] == 0
        phases = sum(numbers[f"coded/{phase}_seconds"] for phase in PHASES)
        assert 0 < phases <= numbers["coded/step_seconds"]
        assert numbers["coded/compute_seconds"] >= 8 * 0.001
        # The body before was slept in.
        assert step == 0 or numbers["coded/apply_seconds"] >= 0.002
    json.dumps(found)


def test_a_late_worker_is_counted_and_work_is_what_was_computed() -> None:
    def work(worker: int, where: Dict[str, Any], _: Any) -> List[Dict[str, float]]:
        # Of each group the second is late: the first is never told to drop its task.
        return train(where, 0.05 if worker % 2 else 0.001)

    results, _ = together("groups:s=1", work)
    fast = results[0]
    assert len(fast) == 12
    # Each worker computes what two do, and the last one is waited for by none.
    assert all(numbers["coded/work"] == 2 for numbers in fast)
    assert sum(numbers["coded/late_workers"] >= 1 for numbers in fast) >= 8
    slow = results[3]
    assert slow and slow[-1]["coded/abandoned_micro_batches"] > 0


@pytest.mark.torch
def test_spans_are_in_the_trace_of_a_profiler(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    import codedgrad.torch as coded

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer = coded.prepare(model, optimizer, steps=6)
    trace = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in model.run.iterations():
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    spans = [each for each in events if each.get("name", "").startswith("codedgrad::")]
    counts = {name: sum(each["name"] == f"codedgrad::{name}" for each in spans) for name in _SPANS}
    # A task is taken by unit, and handed in; the run's last word is that it is over.
    assert counts == {"hand_over": 12, "wait": 13, "take_back": 6, "apply": 6, "state": 0}
    assert {each["tid"] for each in spans} == {spans[0]["tid"]}
    spans.sort(key=lambda each: float(each["ts"]))
    for one, other in zip(spans, spans[1:]):
        assert float(one["ts"]) + float(one["dur"]) <= float(other["ts"]) + 1e-3, "spans overlap"
    assert model.run.metrics()["coded/applied_steps"] == 6


@pytest.mark.torch
def test_tensorboard_shows_them(tmp_path: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    import codedgrad.torch as coded

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with SummaryWriter(str(tmp_path)) as writer:
        with coded.join(model, optimizer, units=2, steps=5) as run:
            for step in run:
                for micro in step:
                    model(torch.ones(2, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                for name, number in run.metrics().items():
                    writer.add_scalar(name, number, step.index)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert documented() <= set(read.Tags()["scalars"])
    assert [each.value for each in read.Scalars("coded/applied_steps")] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("how", ["break", "error", "prepare"])
@pytest.mark.torch
def test_a_body_that_is_left_ends_its_span(how: str) -> None:
    torch = pytest.importorskip("torch")
    import codedgrad.torch as coded

    class Spans:
        opened: List[str] = []

        def __call__(self, name: str) -> "Spans":
            self.opened.append(name)
            return self

        def __exit__(self, *_: object) -> None:
            self.opened.pop()

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    spans = Spans()
    if how == "prepare":
        model, optimizer = coded.prepare(model, optimizer, steps=1)
        run = model.run
        run._session.tally.apply._spans = spans
        for _ in run.iterations():
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            break
    else:
        try:
            with coded.join(model, optimizer, units=2, steps=5) as run:
                run._session.tally.apply._spans = spans
                for step in run:
                    for micro in step:
                        model(torch.ones(2, 4)).square().mean().backward()
                    assert spans.opened == ["codedgrad::apply"]
                    if how == "error":
                        raise KeyError
                    break
        except KeyError:
            pass
    assert spans.opened == [] and run.metrics()["coded/applied_steps"] == 1
