"""The loop on numpy arrays: exactness, late and lost workers, taking over states, bad input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Dict, List, Optional

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from codedgrad import loop
from runs import together, tree_sum, wait_until

UNITS = 8
STEPS = 12
SHAPES = ((5, 3), (3,))
LENGTH = 18


class Replica:
    """Linear regression by SGD with momentum, in float32: small, and sensitive to every bit."""

    def __init__(self) -> None:
        random = np.random.default_rng(5)
        self.parameters = [random.normal(size=shape).astype(np.float32) for shape in SHAPES]
        self.momenta = [np.zeros(shape, dtype=np.float32) for shape in SHAPES]
        # As a learning-rate schedule counts: every step once, whatever became of it.
        self.count = 0

    def gradient(self, generator: np.random.Generator) -> Any:
        x = generator.normal(size=(4, 5)).astype(np.float32)
        y = generator.normal(size=(4, 3)).astype(np.float32)
        error = x @ self.parameters[0] + self.parameters[1] - y
        loss = float((error.astype(np.float64) ** 2).sum())
        return [x.T @ error, error.sum(axis=0)], loss

    def apply(self, gradients: List[Optional[np.ndarray]]) -> None:
        for parameter, momentum, gradient in zip(self.parameters, self.momenta, gradients):
            if gradient is not None:
                momentum *= np.float32(0.9)
                momentum += gradient
                parameter -= np.float32(0.05) * momentum

    def save(self) -> bytes:
        return np.int64(self.count).tobytes() + b"".join(m.tobytes() for m in self.momenta)

    def load(self, state: bytes) -> None:
        self.count = int(np.frombuffer(state[:8], dtype=np.int64)[0])
        numbers, at = np.frombuffer(state[8:], dtype=np.float32), 0
        for momentum in self.momenta:
            momentum[...] = numbers[at : at + momentum.size].reshape(momentum.shape)
            at += momentum.size

    def bits(self) -> bytes:
        return b"".join(p.tobytes() for p in self.parameters) + self.save()

    def join(self, where: Dict[str, Any], **more: Any) -> loop.Run:
        more = {"units": UNITS, "steps": STEPS, **where, **more}
        return loop.join(self.parameters, save=self.save, load=self.load, **more)


class Hooks:
    """What a test does at some moments of a worker's run."""

    run: loop.Run

    def unit(self, replica: Replica, step: int, place: int, micro: loop.Micro) -> None:
        """Before a unit is computed, the so manieth of its step."""

    def body(self, replica: Replica, step: loop.Step, run: loop.Run) -> None:
        """In the body of a step, before it is applied."""

    def end(self, replica: Replica, step: loop.Step, run: loop.Run) -> None:
        """At the end of a step's body."""


def train(where: Dict[str, Any], hooks: Optional[Hooks] = None, **more: Any) -> Dict[str, Any]:
    hooks = hooks or Hooks()
    replica, losses = Replica(), []
    with replica.join(where, **more) as run:
        hooks.run = run
        for step in run:
            for place, micro in enumerate(step):
                hooks.unit(replica, micro.step, place, micro)
                gradients, loss = replica.gradient(micro.generator())
                micro.give(gradients, loss)
            hooks.body(replica, step, run)
            if step.applied:
                replica.apply(step.gradients)
                losses.append((step.index, step.totals[0]))
            replica.count += 1
            hooks.end(replica, step, run)
        digest = run.digest()
    return {
        "bits": replica.bits(),
        "count": replica.count,
        "losses": losses,
        "digest": digest,
        "report": run.report(),
        "parameters": [p.copy() for p in replica.parameters],
        "over": run.over,
    }


def reference(steps: int = STEPS, refused: Any = ()) -> Replica:
    """The same training in plain numpy: one process, units added by the tree."""
    replica = Replica()
    for step in range(steps):
        if step not in refused:
            units = []
            for unit in range(UNITS):
                seed = loop.unit_seed(0, step, unit, "generator")
                units.append(replica.gradient(np.random.default_rng(seed))[0])
            scale = np.float32(1 / UNITS)
            replica.apply([tree_sum([u[k] for u in units]) * scale for k in range(len(SHAPES))])
        replica.count += 1
    return replica


ALIGNED = ["uncoded", "groups:s=1", "groups:s=3", "queue:m=2", "ring:reach=4", "min-load:s=1"]
REAL = ["cyclic:s=1", "cyclic:s=2,seed=3", "groups:l=3"]


@pytest.fixture(scope="module")
def expected() -> Replica:
    return reference()


def test_alone_it_has_the_bits_of_plain_numpy(expected: Replica) -> None:
    found = train({})
    assert found["bits"] == expected.bits()
    assert [index for index, _ in found["losses"]] == list(range(STEPS))


@pytest.mark.parametrize("scheme", ALIGNED)
@pytest.mark.parametrize("trouble", ["none", "late", "nan"])
def test_every_worker_has_the_bits_of_one_process(
    scheme: str, trouble: str, expected: Replica
) -> None:
    class Trouble(Hooks):
        def unit(self, replica: Replica, step: int, place: int, micro: loop.Micro) -> None:
            if trouble == "late":
                time.sleep(0.01)

    class Spoilt(Replica):
        def gradient(self, generator: np.random.Generator) -> Any:
            gradients, loss = super().gradient(generator)
            gradients[0][1, 1] = np.nan
            return gradients, loss

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        if trouble == "nan" and k == 1 and scheme not in ("uncoded", "groups:l=3"):
            return spoilt(where)
        return train(where, Trouble() if k == 2 else None)

    def spoilt(where: Dict[str, Any]) -> Any:
        replica = Spoilt()
        with replica.join(where) as run:
            for step in run:
                for micro in step:
                    micro.give(*replica.gradient(micro.generator()))
                if step.applied:
                    replica.apply(step.gradients)
                replica.count += 1
        return {"bits": replica.bits(), "losses": None}

    found, coordinator = together(scheme, work)
    assert (coordinator.decided, coordinator.refused) == (STEPS, 0)
    assert {worker["bits"] for worker in found} == {expected.bits()}
    losses = [worker["losses"] for worker in found if worker["losses"]]
    assert all(np.allclose(each, losses[0], rtol=1e-12) for each in losses if len(each) == STEPS)


@pytest.mark.parametrize("scheme", REAL)
def test_codes_with_real_weights_stay_within_their_rounding(scheme: str, expected: Replica) -> None:
    found, _ = together(scheme, lambda k, where, _: train(where))
    assert len({worker["bits"] for worker in found}) == 1, "replicas are equal in any case"
    for parameter, right in zip(found[0]["parameters"], expected.parameters):
        # Amplification of these codes is below 32; the errors of a step go on through the others.
        assert np.abs(parameter - right).max() < STEPS * 32 * 2.0**-23 * 16


@pytest.mark.parametrize("scheme", ["sr-sgc:B=1,W=2,lambda=1", "m-sgc:B=1,W=2,lambda=1"])
def test_schemes_with_a_delay_are_refused_for_one_model(scheme: str) -> None:
    with pytest.raises(ValueError, match="overlap"):
        loop.serve(scheme, workers=4, units=8, steps=4, length=3)


def test_micro_steps_are_several_batches_a_step() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        return train(where, steps=6, micro_steps=4)

    found, _ = together("sr-sgc:B=1,W=2,lambda=1", work, workers=4, steps=6, micro_steps=4)
    alone = train({}, steps=6, micro_steps=4)
    assert len({worker["bits"] for worker in found}) == 1
    for parameter, right in zip(found[0]["parameters"], alone["parameters"]):
        assert np.abs(parameter - right).max() < 1e-4


class At(Hooks):
    """Stands still at one moment until others have come so much further."""

    def __init__(self, step: int, phase: str, place: int, ahead: int, run: loop.Coordinator):
        self.step, self.phase, self.place = step, phase, place
        self.until, self.coordinator = step + ahead, run
        self.stood = False

    def stand(self) -> None:
        if not self.stood:
            self.stood = True
            wait_until(lambda: self.coordinator.decided >= self.until, f"step {self.until}")

    def unit(self, replica: Replica, step: int, place: int, micro: loop.Micro) -> None:
        if self.phase == "unit" and step == self.step and place >= self.place:
            self.stand()

    def body(self, replica: Replica, step: loop.Step, run: loop.Run) -> None:
        if self.phase == "body" and step.index >= self.step:
            self.stand()

    def end(self, replica: Replica, step: loop.Step, run: loop.Run) -> None:
        # A state that was taken over within the step is loaded after this.
        assert step.resynced or replica.count == step.index + 1, "every step is counted once"
        if self.phase == "end" and step.index >= self.step:
            self.stand()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    step=st.integers(0, 5),
    phase=st.sampled_from(["unit", "body", "end"]),
    place=st.integers(0, 3),
    ahead=st.sampled_from([1, 2, 5]),
    log_steps=st.sampled_from([1, 2, 16]),
    scheme=st.sampled_from(["groups:s=1", "groups:s=3", "queue:m=2"]),
)
def test_whoever_stands_still_anywhere_catches_up(
    step: int, phase: str, place: int, ahead: int, log_steps: int, scheme: str
) -> None:
    """Abandoned at any unit, given a state at any moment: the same bits, no step counted twice."""
    # Where any one worker is enough and few steps are kept, the one that stands still may be the
    # only one with a state to go on from.
    assume(scheme != "groups:s=3" or log_steps > STEPS)

    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> Any:
        hooks = At(step, phase, place, ahead, coordinator) if k == 3 else None
        return train(where, hooks)

    found, coordinator = together(scheme, work, log_steps=log_steps)
    right = reference()
    assert coordinator.decided == STEPS
    assert [worker["bits"] == right.bits() for worker in found] == [True] * 4


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    step=st.integers(0, 6),
    phase=st.sampled_from(["unit", "body", "end"]),
    place=st.integers(0, 1),
    who=st.integers(0, 3),
)
def test_a_run_that_is_ended_early_counts_no_step_too_many(
    step: int, phase: str, place: int, who: int
) -> None:
    class Ends(Hooks):
        def unit(self, replica: Replica, at: int, place_: int, micro: loop.Micro) -> None:
            if phase == "unit" and at >= step and place_ >= place:
                self.run.finish()

        def body(self, replica: Replica, at: loop.Step, run: loop.Run) -> None:
            if phase == "body" and at.index >= step:
                run.finish()

        def end(self, replica: Replica, at: loop.Step, run: loop.Run) -> None:
            if phase == "end" and at.index >= step:
                run.finish()

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        return train(where, Ends() if k == who else None)

    found, coordinator = together("groups:s=1", work)
    assert step < coordinator.decided <= STEPS
    right = reference(coordinator.decided)
    assert [worker["count"] for worker in found] == [coordinator.decided] * 4
    assert {worker["bits"] for worker in found} == {right.bits()}
    assert all(worker["over"] for worker in found)


def test_a_step_that_nobody_can_compute_is_refused_by_all() -> None:
    class Bad(Replica):
        def gradient(self, generator: np.random.Generator) -> Any:
            gradients, loss = super().gradient(generator)
            if self.count == 4:
                gradients[1][2] = np.inf
            return gradients, loss

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        replica, skipped = Bad(), []
        with replica.join(where) as run:
            for step in run:
                for micro in step:
                    micro.give(*replica.gradient(micro.generator()))
                if step.applied:
                    replica.apply(step.gradients)
                else:
                    skipped.append((step.index, step.skipped))
                    assert step.gradients == [None, None]
                replica.count += 1
        return replica.bits(), skipped, run.report()["skipped"]

    found, coordinator = together("groups:s=1", work)
    assert coordinator.refused == 1
    right = reference(refused={4})
    for bits, skipped, count in found:
        assert bits == right.bits()
        assert count == 1 and [index for index, _ in skipped] == [4]
        assert all(0 <= start < end <= UNITS for start, end in skipped[0][1])


def test_a_lost_worker_is_missed_by_nobody_and_its_seat_is_taken_again(expected: Replica) -> None:
    back = threading.Event()

    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> Any:
        if k != 1:
            class Slow(Hooks):
                def body(self, replica: Replica, step: loop.Step, run: loop.Run) -> None:
                    # Till the lost one is back there is something left to do.
                    if step.index == STEPS - 3:
                        assert back.wait(30)

            return train(where, Slow())
        replica = Replica()
        run = replica.join(where)
        for step in run:
            for micro in step:
                break
            break
        wait_until(lambda: coordinator.decided >= 5, "step 5")
        again = Replica()
        with again.join(where) as run:
            back.set()
            for step in run:
                for micro in step:
                    micro.give(*again.gradient(micro.generator()))
                if step.applied:
                    again.apply(step.gradients)
                again.count += 1
        return {"bits": again.bits()}

    found, coordinator = together("groups:s=1", work)
    assert coordinator.decided == STEPS
    assert {worker["bits"] for worker in found} == {expected.bits()}


def test_the_saver_is_the_live_worker_of_the_lowest_number() -> None:
    savers: Dict[int, List[bool]] = {}

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        replica = Replica()
        with replica.join(where) as run:
            for step in run:
                for micro in step:
                    micro.give(*replica.gradient(micro.generator()))
                if step.applied:
                    replica.apply(step.gradients)
                replica.count += 1
                savers.setdefault(k, []).append(run.saver)
                if k == 0 and step.index == 4:
                    return None
        return replica.bits()

    found, _ = together("groups:s=1", work)
    assert savers[0] == [True] * 5
    assert savers[1][-1] and not savers[1][0]
    assert not any(savers[2]) and not any(savers[3])


def test_events_are_the_same_run(expected: Replica) -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        if k:
            return train(where)
        replica = Replica()
        with replica.join(where) as run:
            for event in run.events():
                if isinstance(event, loop.Compute):
                    for micro in event:
                        micro.give(*replica.gradient(micro.generator()))
                elif isinstance(event, loop.Apply):
                    assert len(event.totals) == 1
                    replica.apply(event.gradients)
                    replica.count += 1
        return {"bits": replica.bits()}

    found, _ = together("groups:s=1", work)
    assert {worker["bits"] for worker in found} == {expected.bits()}


def test_a_parameter_that_no_unit_had_a_gradient_of_has_none() -> None:
    found = []
    run = loop.join([np.zeros(2, np.float32), np.zeros(3, np.float32)], units=4, steps=3)
    for step in run:
        for micro in step:
            if step.index == 0 or micro.unit != 2:
                second = None
            else:
                second = np.full(3, 4.0)
            micro.give([np.ones(2), second])
        found.append([None if g is None else g.tolist() for g in step.gradients])
    assert found == [[[1.0, 1.0], None]] + [[[1.0, 1.0], [1.0, 1.0, 1.0]]] * 2


def test_arrays_that_do_not_change_are_warned_of_but_not_those_that_have_converged() -> None:
    def trained(in_place: bool) -> List[str]:
        weights = np.ones(2, np.float32)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for step in loop.join([weights], units=2, steps=6):
                for micro in step:
                    # Too small to change the weights.
                    micro.give([np.full(2, 1.0 if step.index < 2 else 1e-12)])
                if in_place:
                    weights -= 0.1 * step.gradients[0]
        return [str(each.message) for each in said]

    assert trained(True) == []
    [words] = trained(False)
    assert "do not change with the steps: train them in place" in words


def test_tokens_divide_by_those_of_the_whole_batch() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        weights = np.zeros(1, np.float32)
        found = []
        with loop.join([weights], units=4, steps=2, reduction="tokens", **where) as run:
            for step in run:
                for micro in step:
                    tokens = 3 + micro.unit
                    micro.give([np.full(1, 10.0 * tokens)], 2.0 * tokens, tokens)
                found.append((float(step.gradients[0][0]), step.totals))
        return found

    found, _ = together("groups:s=1", work, units=4, steps=2, length=1)
    assert all(worker == [(10.0, (36.0, 18.0))] * 2 for worker in found)


def test_shapes_and_functions_stand_for_arrays_that_cannot_be_changed() -> None:
    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> Any:
        weights = {"w": np.zeros(3)}  # as jax has it: replaced, never written

        def load(state: bytes) -> None:
            weights["w"] = np.frombuffer(state)

        with loop.join(
            [(3,)],
            units=4,
            steps=STEPS,
            save=lambda: weights["w"].tobytes(),
            load=load,
            **where,
        ) as run:
            for step in run:
                for micro in step:
                    if k == 3 and step.index == 1:
                        wait_until(lambda: coordinator.decided >= 6, "step 6")
                    micro.give([weights["w"] - [1.0, 2.0, 3.0]])
                if step.applied:
                    weights["w"] = weights["w"] - 0.5 * step.gradients[0]
        return weights["w"].tobytes()

    found, _ = together("groups:s=1", work, units=4, length=3, log_steps=1)
    assert len(set(found)) == 1
    assert np.allclose(np.frombuffer(found[0]), [1, 2, 3], atol=1e-3)


def test_other_versions_are_warned_of() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        replica = Replica()
        with warnings.catch_warnings(record=True):
            with replica.join(where) as run:
                if k == 2:
                    run._session.scalars.version += 7
                for step in run:
                    for micro in step:
                        micro.give(*replica.gradient(micro.generator()))
        return run._session.scalars.warned_of_versions

    found, _ = together("uncoded", work)
    assert found == [True] * 4
    found, _ = together("cyclic:s=1", lambda k, where, _: train(where)["over"])
    assert found == [True] * 4


# Bad input.


def run_of_three(**more: Any) -> loop.Run:
    return loop.join([np.zeros(3, np.float32)], **{"units": 4, "steps": 5, **more})


STARTED = ["WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]


@pytest.mark.parametrize("name", STARTED)
def test_one_of_several_processes_does_not_train_alone(name: str, monkeypatch: Any) -> None:
    def join() -> None:
        loop.join([(2,)], units=1, steps=1).close()

    for other in STARTED:
        monkeypatch.delenv(other, raising=False)
    # An allocation of Slurm's is no launch, nor is one process, nor what is no number.
    monkeypatch.setenv("SLURM_NTASKS", "4")
    for value in ("1", "", "four", "0x4"):
        monkeypatch.setenv(name, value)
        join()
    monkeypatch.setenv(name, "4")
    cures = "codedgrad run -n 4 .*mesh=.*CODEDGRAD_ALONE=1"
    with pytest.raises(RuntimeError, match=f"{name} is 4: .*{cures}"):
        join()
    with pytest.raises(ConnectionError):
        where: Any = {"address": "127.0.0.1:1", "token": "00" * 32, "worker": 0}
        loop.join([(2,)], units=1, steps=1, patience=0.01, **where)
    monkeypatch.setenv("CODEDGRAD_ALONE", "1")
    join()


@pytest.mark.parametrize(
    "more, words",
    [
        ({"units": 0}, "units is 0"),
        ({"units": 2.5}, "units is 2.5: it must be a whole number"),
        ({"units": True}, "units is True"),
        ({"steps": 3, "first": 3}, "steps is 3 and first is 3: nothing is left to do"),
        ({"first": -1}, "first is -1"),
        ({"micro_steps": 0}, "micro_steps is 0"),
        ({"unit_samples": 0}, "unit_samples is 0"),
        ({"reduction": "median"}, "reduction is 'median'"),
        ({"verify": -1}, "verify is -1"),
        ({"save": lambda: b""}, "save and load go together"),
        ({"scheme": "groups:s=1"}, "scheme= without an address"),
        ({"address": "127.0.0.1:1", "token": "zz", "patience": 0}, "zz"),
        ({"address": "127.0.0.1:1", "token": "00" * 32, "patience": -1.0}, "patience is -1"),
    ],
)
def test_what_cannot_be_a_run_is_named(more: Dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        run_of_three(**more)


def test_nobody_answers() -> None:
    with pytest.raises(ConnectionError, match="127.0.0.1:1"):
        run_of_three(address="127.0.0.1:1", token="00" * 32, patience=0.0)


@pytest.mark.parametrize(
    "parameters, words",
    [
        (np.zeros(3, np.float32), "list of arrays"),
        ([np.zeros(3)], "parameter 0 is float64"),
        ([], "nothing is trained"),
        ([(3, "x")], "parameter 0 is"),
        ([np.broadcast_to(np.float32(0), (3,))], "cannot be written"),
    ],
)
def test_what_cannot_be_trained_is_named(parameters: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        loop.join(parameters, units=4, steps=5)


def test_gradients_of_other_shapes_are_named() -> None:
    cases = [
        ([np.zeros(2)], "the shape \\(2,\\)"),
        ([], "0 arrays"),
        (np.zeros(3), "one array"),
    ]
    for gradients, words in cases:
        run = run_of_three()
        with pytest.raises(ValueError, match=words):
            for step in run:
                for micro in step:
                    micro.give(gradients)
        assert run.over


def test_a_unit_without_a_gradient_is_an_error_unless_it_is_meant() -> None:
    run = run_of_three()
    with pytest.raises(RuntimeError, match="unit 0 of batch 0 was given no gradient"):
        for step in run:
            for micro in step:
                pass
    run = run_of_three(steps=1)
    for step in run:
        for micro in step:
            micro.nothing()
        assert step.applied and step.gradients == [None]


def test_a_scalar_that_is_not_finite_is_nan_in_the_totals_of_all_workers() -> None:
    wild = {2: float("nan"), 3: float("inf")}

    def work(worker: int, where: Dict[str, Any], _: loop.Coordinator) -> List[Any]:
        weights = np.zeros(3, dtype=np.float32)
        run, seen = loop.join([weights], units=4, steps=6, **where), []
        for step in run:
            for micro in step:
                scalar = wild.get(micro.step, 1.0) if micro.unit == 1 else -1.0
                gradient = np.ones(3, dtype=np.float32)
                if micro.step == 4 and micro.unit == 2:
                    gradient[1] = np.nan
                micro.give([gradient], scalar, 2.0)
            seen.append((step.applied, [repr(total) for total in step.totals]))
        return seen

    for scheme in ("uncoded", "groups:s=1"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            results, _ = together(scheme, work, workers=2, units=4, steps=6, length=3)
        words = [str(each.message) for each in told if "scalar 0" in str(each.message)]
        assert len(words) == 2, words
        assert all("some unit of step 2 reports is not finite" in each for each in words)
        calm, lost, refused = ["-2.0", "8.0"], ["nan", "8.0"], ["nan", "nan"]
        each = [(True, calm)] * 2 + [(True, lost)] * 2 + [(False, refused), (True, calm)]
        assert results == [each, each]


def test_a_number_of_tokens_is_finite() -> None:
    run = run_of_three(reduction="tokens")
    with pytest.raises(ValueError, match="unit 0 of batch 0 reports nan tokens.*is finite"):
        for step in run:
            for micro in step:
                micro.report(1.0, float("nan"))


@pytest.mark.parametrize("reports", [(np.zeros(2),), ("0.5 or so",), (None,), ([1.0],)])
def test_a_report_that_is_no_number_is_named(reports: Any) -> None:
    run = run_of_three()
    with pytest.raises(TypeError, match=r"scalar 0 of report\(\) is .*must be one number"):
        for step in run:
            for micro in step:
                micro.report(*reports)


def test_totals_that_are_not_there_are_asked_for_by_their_name() -> None:
    run = run_of_three(steps=1)
    for step in run:
        for micro in step:
            micro.nothing()
        assert step.totals == ()
        with pytest.raises(IndexError, match=r"totals\[0\].*micro.report\(loss.item\(\)\)"):
            step.totals[0]
    run = run_of_three(steps=1)
    for step in run:
        for micro in step:
            micro.give([np.zeros(3)], micro.unit)
        assert step.totals == (6.0,) and step.totals[0] == 6.0 and step.totals[-1:] == (6.0,)
        with pytest.raises(IndexError, match=r"totals\[1\]: units report one scalar"):
            step.totals[1]


@pytest.mark.parametrize(
    "use",
    [
        lambda step: step % 100,
        lambda step: step == 0,
        lambda step: step < 10,
        lambda step: step + 1,
        lambda step: 1 / step,
        lambda step: range(step),
        lambda step: [1, 2][step],
        lambda step: int(step),
    ],
)
def test_a_step_that_is_taken_for_its_number_says_where_that_is(use: Any) -> None:
    run = run_of_three()
    with pytest.raises(TypeError, match="a step is no number: write step.index"):
        for step in run:
            use(step)
    assert step in {step} and step != "it"


def test_every_unit_reports_equally_many() -> None:
    run = run_of_three()
    with pytest.raises(ValueError, match="unit 1 of batch 0 reports 2 scalars"):
        for step in run:
            for micro in step:
                micro.give([np.zeros(3)], *range(1 + micro.unit))


def test_a_step_is_iterated_over_once_and_wholly() -> None:
    run = run_of_three()
    with pytest.raises(RuntimeError, match="for micro in step:"):
        for step in run:
            pass
    run = run_of_three()
    with pytest.raises(RuntimeError, match="do not\n?.*`break`"):
        for step in run:
            for micro in step:
                break
    run = run_of_three()
    with pytest.raises(RuntimeError, match="only once"):
        for step in run:
            for micro in step:
                micro.nothing()
            for micro in step:
                micro.nothing()
    run = run_of_three(steps=1)
    for step in run:
        for micro in step:
            micro.nothing()
    with pytest.raises(RuntimeError, match="join again"):
        next(iter(run))


def test_workers_that_train_something_else_are_told_what_differs() -> None:
    cases = [
        ({"units": 4}, "units of a batch"),
        ({"steps": STEPS + 1}, "steps"),
        ({"unit_samples": 2}, "samples per unit"),
        ({"micro_steps": 2}, "micro_steps"),
        ({"scheme": "uncoded"}, "scheme: uncoded here, groups:s=1 in the run"),
    ]
    options = {"workers": 2, "units": UNITS, "steps": STEPS, "length": LENGTH}
    ended = pytest.raises(RuntimeError, match="nothing is trained: worker 0 and worker 1 differ in")
    with ended, loop.serve("groups:s=1", **options) as coordinator:
        where = {"address": coordinator.address, "token": coordinator.token, "patience": 0.0}
        for more, words in cases:
            with pytest.raises(ValueError, match=words):
                Replica().join(where, **more)
        with pytest.raises(ValueError, match="numbers in a gradient"):
            run_of_three(units=UNITS, steps=STEPS, **where)
        first = Replica().join(where)
        with pytest.raises(ValueError, match="differ in reduction .sum and mean."):
            Replica().join(where, reduction="sum")
        first.close()


@pytest.mark.parametrize(
    "more, words",
    [
        ({"units": 2}, "2 units cannot be cut into 4 shares.*units= is the number of micro-batches"),
        ({"scheme": "queue:m=4"}, "cannot be cut into 16 shares.*multiple of the shares"),
        ({"scheme": "gruops:s=1"}, "did you mean"),
        ({"scheme": "auto:probe=9,every=9"}, "probe=9 is not from 1 to 8"),
        ({"scheme": "bacc:K=2"}, "bacc:K=2 mixes the data"),
        ({"workers": 0}, "workers is 0"),
        ({"address": "nowhere"}, "nowhere"),
        ({"address": "0.0.0.0:0"}, r"0\.0\.0\.0.*`keys=DIR`"),
        ({"wire": "float16"}, "float16"),
        ({"exchange": "post"}, "post"),
        ({"max_wait": -1.0}, "max_wait"),
        ({"first": 6}, "first is 6"),
        ({"token": "abc"}, "abc"),
    ],
)
def test_what_cannot_be_served_is_named(more: Dict[str, Any], words: str) -> None:
    told = {"scheme": "uncoded", "workers": 4, "units": 8, "steps": 5, "length": 3, **more}
    with pytest.raises(ValueError, match=words):
        loop.serve(told.pop("scheme"), **told)


def test_a_batch_has_as_many_units_as_shares_and_may_have_fewer_than_workers() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        weights = np.zeros(3, np.float32)
        for step in loop.join([weights], units=2, steps=3, **where):
            for micro in step:
                micro.give([np.full(3, micro.unit + 1, np.float32)])
            weights -= step.gradients[0]
        return weights.tobytes()

    found, _ = together("groups:s=1", work, units=2, steps=3, length=3)
    assert found == [np.full(3, -4.5, np.float32).tobytes()] * 4


def test_a_worker_that_comes_when_all_is_over_does_not_go_on_untrained() -> None:
    with loop.serve("uncoded", workers=2, units=8, steps=2, length=LENGTH) as coordinator:
        where = {"address": coordinator.address, "token": coordinator.token}
        replica = Replica()
        run = replica.join(where, steps=2)
        # The other worker has not come: nothing has begun.
        coordinator.stop()
        with pytest.raises(loop.RunOver) as over:
            for _ in run:
                pass
        assert over.value.code == 0


def test_a_run_that_is_left_is_over_for_the_worker_alone(expected: Replica) -> None:
    run = run_of_three()
    run.close()
    run.close()
    with pytest.raises(ConnectionError, match="left"):
        for _ in run:
            pass


def test_another_process_with_the_number_replaces_this_one() -> None:
    with loop.serve("uncoded", workers=2, units=8, steps=STEPS, length=LENGTH) as coordinator:
        where = {"address": coordinator.address, "token": coordinator.token, "worker": 1}
        older, newer = Replica().join(where), Replica().join(where)
        with pytest.raises(loop.Replaced) as replaced:
            for _ in older:
                pass
        assert replaced.value.code == 4
        newer.close()


def test_a_forked_child_does_not_touch_the_run() -> None:
    run = run_of_three()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        try:
            next(iter(run))
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert b"forked" in os.read(read, 1000)
    run.close()


SCRIPT = """
import numpy as np, signal, sys
from codedgrad import loop
# What a shell starts in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
with loop.serve("uncoded", workers=2, units=2, steps=2, length=3) as coordinator:
    run = loop.join([np.zeros(3, np.float32)], units=2, steps=2,
                    address=coordinator.address, token=coordinator.token)
    print("waits", flush=True)
    try:
        for step in run:
            for micro in step:
                micro.nothing()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        run.close()
        coordinator.stop()
"""


def test_ctrl_c_ends_a_wait() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert out == "interrupted\n" and process.returncode == 0
    finally:
        process.kill()


THREADS = """
import sys, time
from pathlib import Path
from codedgrad import loop

def carriers():
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return names.count("codedgrad-io\\n")

def counted(expected):
    # A thread has its name only some time after it has begun.
    for _ in range(1000):
        if carriers() == expected:
            break
        time.sleep(0.01)
    return carriers()

told, expected = int(sys.argv[1]) or None, int(sys.argv[2])
more = dict(workers=1, units=1, steps=1, length=1)
with loop.serve("uncoded", io_threads=told, **more) as run:
    before = counted(expected)
    worker = loop.join([(1,)], units=1, steps=1, address=run.address, token=run.token)
    print(before, counted(2 * expected) - before)
    run.stop()
    run.wait(30)
    worker.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted by /proc")
def test_how_many_threads_carry_bytes_is_a_setting() -> None:
    def found(told: int, variable: str, right: int = 0) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", THREADS, str(told), str(right)],
            env={**os.environ, "CODEDGRAD_IO_THREADS": variable},
            capture_output=True,
            text=True,
        )

    assert found(0, "3", 3).stdout == "3 3\n"
    assert found(5, "3", 5).stdout == "5 5\n"
    usual = min(max(len(os.sched_getaffinity(0)) // 2, 1), 4)
    assert found(0, "", usual).stdout == f"{usual} {usual}\n"
    for told, variable in ((0, "many"), (0, "0"), (257, "")):
        ended = found(told, variable)
        assert ended.returncode == 1
        assert f'ValueError: "{variable or told}" threads for the transport' in ended.stderr
        assert "from 1 to 256" in ended.stderr


def test_a_folder_of_keys_is_enough_on_both_sides(tmp_path):
    """The token that lies in it counts for the coordinator as for the workers."""
    keys = tmp_path / "keys"
    command = [sys.executable, "-m", "codedgrad", "keygen", str(keys), "--workers", "2"]
    subprocess.run(command, check=True, capture_output=True)
    assert (keys / "token").exists()

    def work(k, where, coordinator):
        weights = np.zeros(18, dtype=np.float32)
        run = loop.join(
            [weights], units=8, steps=3, address=where["address"], keys=keys, worker=k
        )
        for step in run:
            for micro in step:
                micro.give([np.full(18, micro.unit, dtype=np.float32)])
            weights += step.gradients[0]
        return weights[0]

    results, _ = together("uncoded", work, workers=2, steps=3, keys=keys)
    assert results == [3 * 3.5] * 2
