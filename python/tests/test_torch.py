"""The door for PyTorch: bits of one process, and every trap that a training script may hold."""

from __future__ import annotations

import copy
import math
import random
import threading
import time
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import codedgrad.torch as coded  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad._torch import host  # noqa: E402
from codedgrad.loop import unit_seed  # noqa: E402
from runs import together, tree_sum, wait_until  # noqa: E402

UNITS = 8
STEPS = 8
ALIGNED = ["uncoded", "groups:s=1", "groups:s=3", "queue:m=2", "ring:reach=4"]


class Model(nn.Module):
    """A small language model's parts: embedding, tied head, norm, dropout."""

    def __init__(self, dropout: float = 0.0, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 13, bias=False)
        self.head.weight = self.embedding.weight
        generator = torch.Generator().manual_seed(3)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0, 0.3, generator=generator)
            else:
                parameter.data.fill_(0.1)
        self.to(dtype)

    def forward(self, x: Any) -> Any:
        x = self.embedding(x)
        x = x + self.dropout(F.gelu(self.hidden(self.norm(x))))
        return self.head(x)


def batch(generator: Any) -> Tuple[Any, Any]:
    tokens = torch.randint(0, 13, (4, 6), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: Any, generator: Any) -> Any:
    x, y = batch(generator)
    return F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())


OPTIMIZERS: Dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2),
}
if hasattr(torch.optim, "Adafactor"):
    OPTIMIZERS["adafactor"] = lambda p: torch.optim.Adafactor(p, 1e-2)
if hasattr(torch.optim, "Muon"):
    # Muon is for matrices alone, so that the model's vectors stay.
    OPTIMIZERS["muon"] = lambda p: torch.optim.Muon([x for x in p if x.dim() == 2], 1e-2)


def schedule(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 5))


def bits(model: Any) -> List[bytes]:
    return [
        parameter.detach().view(torch.uint8).numpy().tobytes() for parameter in model.parameters()
    ]


def train(
    where: Dict[str, Any],
    *,
    optimizer: str = "adamw",
    model: Optional[Any] = None,
    unit: Callable[[Any], None] = lambda micro: None,
    spoil: Callable[[Any], bool] = lambda micro: False,
    body: Callable[[Any, Any], None] = lambda step, run: None,
    steps: int = STEPS,
    **more: Any,
) -> Dict[str, Any]:
    model = Model() if model is None else model
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    scheduler = schedule(optim)
    totals, counts = [], []
    run = coded.join(
        model, optim, units=UNITS, steps=steps, state={"scheduler": scheduler}, **where, **more
    )
    with run:
        for step in run:
            for micro in step:
                unit(micro)
                loss = loss_of(model, micro.generator())
                if spoil(micro):
                    loss = loss * math.nan
                micro.report(1.0, 2.0 * micro.unit)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optim.step()
            scheduler.step()
            optim.zero_grad(set_to_none=True)
            body(step, run)
            totals.append(step.totals)
            # What was taken over within a step is loaded after the body.
            counts.append(step.resynced or scheduler.last_epoch == step.index + 1)
        report = run.report()
    assert all(counts), "the scheduler counts each step once"
    return {"bits": bits(model), "totals": totals, "report": report, "model": model}


def reference(optimizer: str = "adamw", steps: int = STEPS, dropout: float = 0.0) -> List[bytes]:
    """The same in plain PyTorch, with each unit's gradient added by the tree."""
    model = Model(dropout)
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    scheduler = schedule(optim)
    for step in range(steps):
        gradients: List[List[Any]] = []
        for unit in range(UNITS):
            model.zero_grad(set_to_none=True)
            torch.manual_seed(unit_seed(0, step, unit))
            generator = torch.Generator().manual_seed(unit_seed(0, step, unit, "generator"))
            loss_of(model, generator).backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        for place, parameter in enumerate(model.parameters()):
            parameter.grad = tree_sum([unit[place] for unit in gradients]) / UNITS
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optim.step()
        scheduler.step()
    return bits(model)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_alone_it_has_the_bits_of_plain_torch(optimizer: str) -> None:
    assert train({}, optimizer=optimizer)["bits"] == reference(optimizer)


def test_dropout_is_drawn_alike_whoever_computes_a_unit() -> None:
    assert train({}, model=Model(0.3))["bits"] == reference(dropout=0.3)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    scheme=st.sampled_from(ALIGNED),
    trouble=st.sampled_from(["none", "late", "dead", "nan"]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    who=st.integers(0, 3),
)
def test_every_worker_has_the_bits_of_one_process(
    scheme: str, trouble: str, optimizer: str, who: int
) -> None:
    if scheme == "uncoded" and trouble in ("dead", "nan"):
        trouble = "late"  # nobody else has what the worker had

    class Dies(Exception):
        pass

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        def unit(micro: Any) -> None:
            if k == who and trouble == "late":
                time.sleep(0.005)
            if k == who and trouble == "dead" and micro.step >= 2:
                raise Dies

        def spoil(micro: Any) -> bool:
            return k == who and trouble == "nan" and micro.step in (1, 2, 5)

        try:
            return train(where, optimizer=optimizer, unit=unit, spoil=spoil)
        except Dies:
            return None

    found, coordinator = together(scheme, work, steps=STEPS, length=coded.length(Model()))
    right = reference(optimizer)
    assert (coordinator.decided, coordinator.refused) == (STEPS, 0)
    there = [worker for worker in found if worker is not None]
    assert len(there) >= 3
    for worker in there:
        assert worker["bits"] == right
        # Each unit counted once, by the decode, whoever computed it.
        assert worker["totals"][-1] == (UNITS, 2.0 * sum(range(UNITS)))


class Deep(nn.Module):
    """Layers of more than a chunk each, whose gradients are final one after the other."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(300, 300) for _ in range(4))
        for parameter in self.parameters():
            parameter.data.normal_(0, 0.05, generator=generator)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def deep(
    where: Dict[str, Any],
    twice_in: int = -1,
    wait: float = 0.0,
    overlap: Optional[bool] = True,
) -> Tuple[List[bytes], int]:
    """Trains it; gives the bits, and in how many units all was handed over during the backward
    pass. In one step the last unit's gradients are written twice."""
    model = Deep()
    optim = torch.optim.SGD(model.parameters(), 0.1)
    handed = 0
    with coded.join(model, optim, units=UNITS, steps=STEPS, overlap=overlap, **where) as run:
        for step in run:
            for micro in step:
                time.sleep(wait)
                x = torch.randn(2, 300, generator=micro.generator())
                model(x).square().mean().backward()
                handed += run._session.arrays.announcer._handed == 0
                if (step.index, micro.unit) == (twice_in, UNITS - 1):
                    model(x).square().mean().backward()
            optim.step()
            optim.zero_grad(set_to_none=True)
    return bits(model), handed


@pytest.mark.parametrize("scheme, late", [("uncoded", -1), ("groups:s=1", -1), ("groups:s=1", 2)])
def test_gradients_are_handed_over_during_the_backward_pass(
    scheme: str, late: int, monkeypatch: Any
) -> None:
    monkeypatch.setattr("codedgrad._torch.announcer._PART", 1)
    right, handed = deep({})
    assert handed == 0, "alone there is nobody to hand anything to"

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        return deep(where, wait=0.01 if k == late else 0.0)

    length = coded.length(Deep())
    found, _ = together(scheme, work, steps=STEPS, length=length)
    assert all(found_bits == right for found_bits, _ in found)
    # Of each task the last unit, after the first one has shown how gradients are written. Whose
    # partner answers first may not come to it.
    assert sum(handed for _, handed in found) >= STEPS - 1


def test_nothing_is_handed_over_where_summing_would_take_the_cores(monkeypatch: Any) -> None:
    monkeypatch.setattr("codedgrad._torch.announcer._PART", 1)
    right, _ = deep({})

    def work(_: int, where: Dict[str, Any], __: loop.Coordinator) -> Any:
        return deep(where, overlap=None)

    found, _ = together("uncoded", work, steps=STEPS, length=coded.length(Deep()))
    assert found == [(right, 0)] * len(found), "all on the CPU of this host"


def test_a_gradient_that_is_written_after_it_was_handed_over_is_found_out() -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        return deep(where, twice_in=3 if k == 1 else -1)

    named = r"step 3: the gradient of parameters? \w.* in micro-batch \d+ of batch 3 was changed"
    with pytest.raises(RuntimeError, match=f"{named} after backward\\(\\) had submitted it"):
        together("uncoded", work, workers=2, steps=STEPS, length=coded.length(Deep()))


@pytest.mark.parametrize("scheme", ["cyclic:s=1", "groups:l=3", "min-load:s=2", "vote:s=0,b=1"])
def test_other_exact_schemes_stay_within_their_rounding(scheme: str) -> None:
    more: Dict[str, Any] = {"units": 12} if scheme == "groups:l=3" else {}
    workers = 3 if scheme.startswith("vote") else 4
    units = more.get("units", UNITS)

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        model = Model()
        optim = torch.optim.SGD(model.parameters(), 0.1)
        gradients = []
        for step in coded.join(model, optim, units=units, steps=3, **where):
            for micro in step:
                loss_of(model, micro.generator()).backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
            optim.step()
        return gradients

    length = coded.length(Model())
    found, _ = together(scheme, work, workers=workers, units=units, steps=3, length=length)
    alone = work(0, {}, None)  # type: ignore[arg-type]
    for step in range(3):
        for mine, others in zip(found[0][step], found[-1][step]):
            assert torch.equal(mine, others), "replicas are equal in any case"
    for decoded, right in zip(found[0][0], alone[0]):
        # Amplifications of these codes are below 16.
        assert (decoded - right).abs().max() <= 16 * 2.0**-23 * max(1.0, right.abs().max())


@pytest.mark.parametrize("phase", ["unit", "body"])
def test_a_state_is_taken_over_with_optimizer_and_schedule(phase: str) -> None:
    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> Any:
        stood = []

        def stand(step: int) -> None:
            if k == 3 and step >= 1 and not stood:
                stood.append(step)
                wait_until(lambda: coordinator.decided >= 6, "step 6")

        return train(
            where,
            unit=lambda micro: stand(micro.step) if phase == "unit" else None,
            body=lambda step, _: stand(step.index) if phase == "body" else None,
        )

    length = coded.length(Model())
    found, _ = together("groups:s=1", work, steps=STEPS, length=length, log_steps=1)
    assert found[3]["report"]["resyncs"] >= 1
    right = reference()
    assert [worker["bits"] == right for worker in found] == [True] * 4


def test_bf16_parameters_are_summed_in_f32_and_rounded_once() -> None:
    def gradients(where: Dict[str, Any]) -> Any:
        model = Model(dtype=torch.bfloat16)
        optim = torch.optim.AdamW(model.parameters(), 1e-2)
        found = []
        for step in coded.join(model, optim, units=UNITS, steps=4, **where):
            for micro in step:
                loss_of(model, micro.generator()).backward()
            found.append([parameter.grad.clone() for parameter in model.parameters()])
            assert all(p.grad.dtype is torch.bfloat16 for p in model.parameters())
            optim.step()
        return found, bits(model)

    length = coded.length(Model())
    found, _ = together(
        "groups:s=1", lambda k, where, _: gradients(where), steps=4, length=length
    )
    alone = gradients({})
    assert all(worker[1] == alone[1] for worker in found)
    # The first step's, by hand.
    model, units = Model(dtype=torch.bfloat16), []
    for unit in range(UNITS):
        model.zero_grad(set_to_none=True)
        loss_of(model, torch.Generator().manual_seed(unit_seed(0, 0, unit, "generator"))).backward()
        units.append([parameter.grad.float() for parameter in model.parameters()])
    for place, decoded in enumerate(alone[0][0]):
        right = (tree_sum([unit[place] for unit in units]) / UNITS).to(torch.bfloat16)
        assert torch.equal(decoded, right)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_mixed_formats_lie_beside_each_other(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).to(dtype))
    run = coded.join(model, units=2, steps=1)
    for step in run:
        for micro in step:
            value = 1.0 + micro.unit / 4
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
        assert [p.grad.dtype for p in model.parameters()] == [torch.float32] * 2 + [dtype] * 2
        assert all(p.grad.eq(1.125).all() for p in model.parameters())


@pytest.mark.parametrize("who", ["one", "all"])
def test_the_scaler_halves_together_where_all_overflow(who: str) -> None:
    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        model = Model()
        optim = torch.optim.AdamW(model.parameters(), 1e-2)
        scaler = coded.GradScaler(init_scale=2.0**10, growth_interval=4)
        run = coded.join(model, optim, units=UNITS, steps=STEPS, state={"s": scaler}, **where)
        scales, norms = [], []
        for step in run:
            for micro in step:
                loss = loss_of(model, micro.generator())
                if micro.step == 2 and (who == "all" or k == 1):
                    loss = loss * torch.tensor(3e38)
                scaler.scale(loss).backward()
            scaler.unscale_(optim)
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            scaler.step(optim)
            scaler.update()
            optim.zero_grad(set_to_none=True)
            scales.append(scaler.get_scale())
            assert (step.skipped is not None) == (who == "all" and step.index == 2)
        return bits(model), scales, norms

    found, coordinator = together(
        "groups:s=1", work, steps=STEPS, length=coded.length(Model())
    )
    assert all(worker == found[0] for worker in found)
    assert coordinator.refused == (who == "all")
    scales = found[0][1]
    if who == "all":
        assert scales == [1024.0] * 2 + [512.0] * 4 + [1024.0] * 2
    else:
        assert scales == [1024.0] * 3 + [2048.0] * 4 + [4096.0]
        # Unscaled exactly: as without a scaler.
        model = Model()
        optim = torch.optim.AdamW(model.parameters(), 1e-2)
        for step in coded.join(model, optim, units=UNITS, steps=STEPS):
            for micro in step:
                loss_of(model, micro.generator()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optim.step()
        assert bits(model) == found[0][0]


def test_the_scaler_takes_powers_of_two_in_a_run() -> None:
    with pytest.raises(ValueError, match="growth_factor is 1.5"):
        coded.GradScaler(growth_factor=1.5)
    scaler = coded.GradScaler()
    with pytest.raises(ValueError, match="new_scale is 3.0"):
        scaler.update(3.0)
    with pytest.raises(RuntimeError, match="in no run"):
        scaler.step(torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
        for parameter in self.parameters():
            parameter.data.fill_(0.5)

    def forward(self, x: Any, heads: str) -> Any:
        x = self.body(x)
        return sum(getattr(self, head)(x).mean() for head in heads)


def test_a_parameter_without_gradient_in_any_unit_is_left_alone() -> None:
    """AdamW would decay one whose gradient is zero, and leaves one alone that has none."""

    def heads(step: int, unit: int) -> str:
        return "a" if step != 2 or unit != 5 else "ab"

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        model = TwoHeads()
        optim = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.5)
        none = []
        for step in coded.join(model, optim, units=UNITS, steps=4, **where):
            for micro in step:
                x = torch.ones(2, 3) + micro.unit
                model(x, heads(micro.step, micro.unit)).backward()
            none.append(model.b.weight.grad is None)
            optim.step()
        return bits(model), none

    found, _ = together("groups:s=1", work, steps=4, length=coded.length(TwoHeads()))
    plain = TwoHeads()
    optim = torch.optim.AdamW(plain.parameters(), 0.1, weight_decay=0.5)
    for step in range(4):
        optim.zero_grad(set_to_none=True)
        for unit in range(UNITS):
            (plain(torch.ones(2, 3) + unit, heads(step, unit)) / UNITS).backward()
        optim.step()
    for found_bits, none in found:
        assert none == [True, True, False, True]
        assert found_bits == found[0][0]
    decoded = [torch.frombuffer(bytearray(b), dtype=torch.float32) for b in found[0][0]]
    for parameter, right in zip(decoded, plain.parameters()):
        assert torch.allclose(parameter, right.detach().flatten(), atol=1e-6)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compiled_model_is_the_same_model(when: str) -> None:
    # While one thread compiles, an optimizer in another computes in other numbers: it asks whether anything
    # is compiled, not who asks. Workers in earnest are processes.
    compiling = threading.Lock()

    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> Any:
        model = Model()
        compiled = torch.compile(model, backend="eager") if k != 3 else model
        joined = compiled if when == "before" else model
        optim = torch.optim.AdamW(model.parameters(), 1e-2)
        for step in coded.join(joined, optim, units=UNITS, steps=STEPS, **where):
            for micro in step:
                if k == 3 and step.index == 1:
                    # A state of a compiled model for one that is not.
                    wait_until(lambda: coordinator.decided >= 5, "step 5")
                with compiling:
                    loss_of(model if k == 3 else compiled, micro.generator()).backward()
            with compiling:
                optim.step()
        return bits(model)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, _ = together(
            "groups:s=1", work, steps=STEPS, length=coded.length(Model()), log_steps=1
        )
    assert all(worker == found[0] for worker in found)


def test_sparse_gradients_are_made_dense() -> None:
    def work(where: Dict[str, Any], sparse: bool) -> Any:
        model = nn.Embedding(5, 3, sparse=sparse)
        model.weight.data.fill_(0.25)
        optim = torch.optim.SGD(model.parameters(), 0.1)
        for step in coded.join(model, optim, units=4, steps=3, **where):
            for micro in step:
                x = torch.tensor([micro.unit, micro.unit, 4])
                (model(x) ** 2).sum().backward()
            optim.step()
        return bits(model)

    assert work({}, True) == work({}, False)
    model = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(TypeError, match="SparseAdam"):
        coded.join(model, torch.optim.SparseAdam(model.parameters()), units=2, steps=2)


def test_frozen_and_tied_parameters_are_not_sent_twice() -> None:
    model = Model()
    everything = sum(p.numel() for p in model.parameters())
    assert coded.length(model) == everything, "the tied one is counted once"
    model.hidden.weight.requires_grad_(False)
    assert coded.length(model) == everything - 64
    before = model.hidden.weight.clone()
    optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    for step in coded.join(model, optim, units=2, steps=2):
        for micro in step:
            loss_of(model, micro.generator()).backward()
        optim.step()
    assert torch.equal(model.hidden.weight, before) and model.hidden.weight.grad is None


@pytest.mark.parametrize("change", ["add", "freeze", "unfreeze", "replace", "format", "group"])
def test_what_takes_a_gradient_does_not_change_after_join(change: str) -> None:
    model = Model()
    model.hidden.bias.requires_grad_(False)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    run = coded.join(model, optim, units=2, steps=3)
    words = {
        "freeze": "hidden.weight was frozen after join",
        "unfreeze": "hidden.bias was frozen at join and takes a gradient.*learning rate of 0",
        "format": "embedding.weight was torch.float32 at join and is torch.bfloat16 now",
        "group": "a parameter of the shape \\(3,\\) that is not in the model",
    }
    expected = words.get(change, "(hidden.weight|extra).*after join")
    with pytest.raises((RuntimeError, ValueError), match=expected):
        for step in run:
            for micro in step:
                loss_of(model, micro.generator()).backward()
            if change == "add":
                model.extra = nn.Parameter(torch.zeros(2))
            elif change == "format":
                model.bfloat16()
            elif change == "group":
                optim.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
            elif change == "freeze":
                model.hidden.weight.requires_grad_(False)
            elif change == "unfreeze":
                model.hidden.bias.requires_grad_(True)
            else:
                model.hidden.weight = nn.Parameter(torch.zeros(8, 8))
                model.hidden.extra = nn.Parameter(torch.zeros(1))
    assert run.over


def test_complex_parameters_are_refused_with_a_cure_that_helps() -> None:
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(TypeError, match="complex64: .*not supported.*view_as_real"):
        coded.join(model, torch.optim.SGD(model.parameters(), 0.1), units=2, steps=3)


def test_masters_of_an_optimizers_own_are_refused_with_a_cure_that_helps() -> None:
    model = nn.Linear(2, 2).bfloat16()
    masters = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    told = "weight is torch.bfloat16: masters .*not supported.*model itself in float32.*autocast"
    with pytest.raises(ValueError, match=told):
        coded.join(model, torch.optim.SGD(masters, 0.1), units=2, steps=3)
    model.float()
    run = coded.join(model, torch.optim.SGD(model.parameters(), 0.1), units=2, steps=3)
    for step in run:
        for _ in step:
            with torch.autocast("cpu", torch.bfloat16):
                model(torch.ones(1, 2)).sum().backward()
        assert model.weight.grad.dtype is torch.float32
    assert run.complete


def test_memory_formats_do_not_matter() -> None:
    def work(memory_format: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).to(memory_format=memory_format)
        optim = torch.optim.SGD(model.parameters(), 0.1)
        for step in coded.join(model, optim, units=2, steps=2):
            for micro in step:
                x = torch.randn(2, 3, 6, 6, generator=micro.generator())
                model(x.to(memory_format=memory_format)).square().mean().backward()
            optim.step()
        return [p.detach().contiguous() for p in model.parameters()]

    for one, other in zip(work(torch.channels_last), work(torch.contiguous_format)):
        assert torch.allclose(one, other, atol=1e-6)


def test_parts_of_a_model_and_several_optimizers() -> None:
    parts = [nn.Linear(3, 3), nn.Linear(3, 1)]
    optims = [torch.optim.SGD(part.parameters(), 0.1) for part in parts]
    run = coded.join(parts, optims, units=2, steps=2)
    for step in run:
        for micro in step:
            parts[1](parts[0](torch.ones(2, 3))).sum().backward()
        for optim in optims:
            optim.step()
    assert run.report()["applied"] == 2


def test_random_numbers_of_python_and_numpy_are_seeded_if_asked() -> None:
    def draw(where: Dict[str, Any], seed_all: bool) -> Any:
        model = nn.Linear(1, 1)
        drawn = []
        for step in coded.join(model, units=3, steps=2, seed_all=seed_all, **where):
            for micro in step:
                drawn.append((random.random(), np.random.rand(), float(torch.rand(1))))
                model(torch.ones(1, 1)).sum().backward()
            drawn.append(float(torch.rand(1)))
        return drawn

    first, again = draw({}, True), draw({}, True)
    assert first == again
    assert len({each[2] for each in first if isinstance(each, tuple)}) == 6
    loose, again = draw({}, False), draw({}, False)
    assert loose != again and [x[-1] for x in loose if isinstance(x, tuple)] == [
        x[-1] for x in again if isinstance(x, tuple)
    ]


def test_an_exception_leaves_the_run_to_the_others() -> None:
    class Oops(Exception):
        pass

    raised = threading.Event()

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        def unit(micro: Any) -> None:
            if k == 2 and micro.step == 3:
                raised.set()
                raise Oops
            if k == 3 and micro.step == 3:
                # Nobody else has these units: the other worker is not late for them.
                assert raised.wait(30)

        try:
            return train(where, unit=unit)["bits"]
        except Oops:
            return None

    found, _ = together("groups:s=1", work, steps=STEPS, length=coded.length(Model()))
    assert found[2] is None
    assert found[0] == found[1] == found[3] == reference()


# Resuming and saving.


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    path = tmp_path / "checkpoint.pt"
    length = coded.length(Model())
    saved: List[int] = []

    def part(where: Dict[str, Any], first: int, stop: Optional[int]) -> Any:
        model = Model()
        optim = OPTIMIZERS["adamw"](list(model.parameters()))
        scheduler = schedule(optim)
        parts = {"model": model, "optim": optim, "scheduler": scheduler}
        if first:
            for name, state in torch.load(path, weights_only=True).items():
                parts[name].load_state_dict(state)
        more = {"units": UNITS, "steps": STEPS, "first": first, "state": {"s": scheduler}}
        run = coded.join(model, optim, **more, **where)
        assert run.first == first
        for step in run:
            for micro in step:
                loss_of(model, micro.generator()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optim.step()
            scheduler.step()
            if step.index + 1 == stop:
                if run.saver:
                    saved.append(run.worker)
                    torch.save({name: each.state_dict() for name, each in parts.items()}, path)
                run.finish()
        return bits(model)

    together("groups:s=1", lambda k, where, _: part(where, 0, 5), steps=STEPS, length=length)
    assert saved == [0]
    found, coordinator = together(
        "groups:s=1", lambda k, where, _: part(where, 5, None), steps=STEPS, length=length, first=5
    )
    assert coordinator.decided == STEPS
    assert all(worker == reference() for worker in found)


def test_distributed_checkpoints_hold_nothing_of_the_run(tmp_path: Any) -> None:
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    helpers = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = Model()
    optim = OPTIMIZERS["adamw"](list(model.parameters()))
    run = coded.join(model, optim, units=UNITS, steps=5)
    for step in run:
        for micro in step:
            loss_of(model, micro.generator()).backward()
        optim.step()
        if step.index == 2 and run.saver:
            content = {"model": model.state_dict(), "step": step.index}
            content["optim"] = helpers.get_optimizer_state_dict(model, optim)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.save(copy.deepcopy(content), checkpoint_id=str(tmp_path))
    right = bits(model)

    model = Model()
    optim = OPTIMIZERS["adamw"](list(model.parameters()))
    content = {
        "model": model.state_dict(),
        "optim": helpers.get_optimizer_state_dict(model, optim),
        "step": -1,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(content, checkpoint_id=str(tmp_path))
    model.load_state_dict(content["model"])
    helpers.set_optimizer_state_dict(model, optim, content["optim"])
    for step in coded.join(model, optim, units=UNITS, steps=5, first=content["step"] + 1):
        for micro in step:
            loss_of(model, micro.generator()).backward()
        optim.step()
    assert bits(model) == right


# Events.


def test_events_drive_a_loop_that_cannot_be_turned_inside_out() -> None:
    model = Model()
    optim = OPTIMIZERS["adamw"](list(model.parameters()))
    scheduler = schedule(optim)
    run = coded.join(model, optim, units=UNITS, steps=STEPS, state={"s": scheduler})
    for event in run.events():
        if isinstance(event, coded.Compute):
            for micro in event:
                loss_of(model, micro.generator()).backward()
        elif isinstance(event, coded.Apply):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optim.step()
            scheduler.step()
    assert bits(model) == reference()


# The loader.


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, count: int, run: Any = None):
        self.count = count
        self.run = run

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if self.run is not None:
            self.run.traffic()
        return index


class Augmented(Numbers):
    """Each sample with random numbers of all three kinds, as augmentation draws them."""

    def __getitem__(self, index: int) -> Any:
        return float(torch.rand(1)), random.random(), float(np.random.rand())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("scheme", ["groups:s=1", "queue:m=1"])
def test_the_loader_gives_each_unit_its_samples(num_workers: int, scheme: str) -> None:
    """Two epochs of 3 batches of 4 units of 2 samples; 26 samples, 2 of which are left out."""

    def work(k: int, where: Dict[str, Any], _: loop.Coordinator) -> Any:
        model = nn.Linear(1, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        seen: Dict[Tuple[int, int], List[int]] = {}
        run = coded.join(model, units=4, steps=6, unit_samples=2, **where)
        loader = coded.Loader(Numbers(26), run, num_workers=num_workers)
        for step in run:
            for micro in step:
                samples = loader(micro)
                seen[micro.batch, micro.unit] = samples.tolist()
                model(samples.float()[:, None]).sum().backward()
        loader.close()
        return seen

    if num_workers:
        found = [work(0, {}, None)]  # type: ignore[arg-type]
    else:
        found, _ = together(scheme, work, units=4, steps=6, unit_samples=2, length=2)
    everything: Dict[Tuple[int, int], List[int]] = {}
    for seen in found:
        for unit, samples in seen.items():
            assert everything.setdefault(unit, samples) == samples, "whoever reads it"
    assert len(everything) == 24
    for epoch in (0, 1):
        samples = [everything[epoch * 3 + b, u] for b in range(3) for u in range(4)]
        assert len({x for unit in samples for x in unit}) == 24
    assert everything[0, 0] != everything[3, 0], "each epoch has its own order"


def test_what_is_drawn_for_samples_depends_on_the_unit_alone() -> None:
    def drawn(num_workers: int) -> Any:
        model, found = nn.Linear(1, 1), []
        run = coded.join(model, units=4, steps=2, unit_samples=2)
        loader = coded.Loader(Augmented(8), run, num_workers=num_workers)
        for step in run:
            for micro in step:
                found.append([x.tolist() for x in loader(micro)] + [float(torch.rand(1))])
                model(torch.ones(1, 1)).sum().backward()
        loader.close()
        return found

    assert drawn(0) == drawn(1)


def test_the_loader_refuses_what_it_cannot_index() -> None:
    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(9))

    run = coded.join(nn.Linear(1, 1), units=4, steps=1)
    with pytest.raises(TypeError, match="Stream is an IterableDataset.*batch\\(micro\\)"):
        coded.Loader(Stream(), run)
    with pytest.raises(ValueError, match="3 samples, a batch 4"):
        coded.Loader(Numbers(3), run)
    run.close()


def test_a_dataset_that_uses_the_run_in_another_process_is_told() -> None:
    run = coded.join(nn.Linear(1, 1), units=4, steps=1)
    loader = torch.utils.data.DataLoader(
        Numbers(4, run), num_workers=1, multiprocessing_context="fork"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="forked"):
            list(loader)
    run.close()


# What is refused.


def joined(model: Any, optimizer: Any = None, **more: Any) -> Any:
    return coded.join(model, optimizer, **{"units": 2, "steps": 2, **more})


@pytest.mark.parametrize(
    "model, words",
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "1 is a BatchNorm1d.*GroupNorm"),
        (lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True), "InstanceNorm1d"),
        (lambda: nn.Linear(2, 2).double(), "weight is torch.float64.*float()"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight is on the meta device.*to_empty"),
        (lambda: nn.LazyLinear(2), "weight has no shape yet"),
        (lambda: nn.ReLU(), "no parameter takes a gradient"),
        (lambda: torch.zeros(2), "is Tensor"),
        (lambda: [nn.Linear(1, 1), 3], "is int"),
    ],
)
def test_models_that_cannot_be_replicated_are_named(model: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        joined(model() if not isinstance(model(), torch.Tensor) else [model()])


def test_batch_norm_without_running_statistics_is_taken() -> None:
    for norm in (nn.BatchNorm1d(2, track_running_stats=False), nn.BatchNorm1d(2).eval()):
        joined(nn.Sequential(nn.Linear(2, 2), norm)).close()


def test_wrappers_and_groups_are_named() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        with pytest.raises(TypeError, match="DistributedDataParallel.*remove the wrapper"):
            joined(wrapped)
        joined(nn.Linear(2, 2)).close()
    finally:
        torch.distributed.destroy_process_group()


def test_optimizers_of_other_parameters_are_named() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(3, 1)
    both = [*model.parameters(), *other.parameters()]
    with pytest.raises(ValueError, match="a parameter of the shape \\(1, 3\\).*as a list"):
        joined(model, torch.optim.SGD(both, 0.1))
    with pytest.raises(TypeError, match="LBFGS"):
        joined(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(TypeError, match="optimizer is"):
        joined(model, ["adam"])
    with pytest.raises(TypeError, match="state\\['count'\\] is int"):
        joined(model, state={"count": 3})


def test_what_is_given_in_the_wrong_place_is_named() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"model is SGD, an optimizer.*join\(model, optimizer"):
        joined(torch.optim.SGD(model.parameters(), 0.1), model)
    with pytest.raises(TypeError, match="model is float"):
        joined(0.1)
    with pytest.raises(TypeError, match="optimizer is float"):
        joined(model, 0.1)


@pytest.mark.parametrize("named", [False, True])
def test_a_scheduler_that_is_not_handed_over_is_warned_of(named: bool) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optim, 2, 0.5)
    run = joined(model, optim, steps=6, state={"scheduler": scheduler} if named else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in run:
            for micro in step:
                model(torch.ones(1, 2)).sum().backward()
            optim.step()
            scheduler.step()
    words = [str(each.message) for each in caught if "scheduler" in str(each.message)]
    assert len(words) == (0 if named else 1), words


def test_rates_that_a_loop_sets_itself_are_its_own_affair() -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    run = joined(model, optim, steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in run:
            for micro in step:
                loss = model(torch.ones(1, 2)).sum()
                loss.backward()
                # A tensor with a graph is as good as its number.
                micro.report(loss)
            for group in optim.param_groups:
                group["lr"] = 0.1 / (1 + step.index)
            optim.step()


def test_a_model_is_in_one_run() -> None:
    model = nn.Linear(2, 2)
    run = joined(model)
    with pytest.raises(RuntimeError, match="in a run already"):
        joined(model)
    run.close()
    joined(model).close()


@pytest.mark.parametrize("kind", ["spectral", "batch", "count"])
def test_what_a_forward_pass_writes_into_the_model_is_named(kind: str) -> None:
    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("cache", torch.zeros(1), persistent=False)

        def forward(self, x: Any) -> Any:
            self.cache += 1
            if kind == "count":
                self.calls = self.calls + 1
            return super().forward(x)

    model = nn.Sequential(nn.Linear(2, 2), Counts())
    words = "1.calls of a Counts"
    if kind == "spectral":
        torch.nn.utils.parametrizations.spectral_norm(model[0])
        words = "0.parametrizations.weight.0._u of a _SpectralNorm"
    elif kind == "batch":
        # In eval() at join, and in train() in the loop.
        model.append(nn.BatchNorm1d(2).eval())
        words = "2.num_batches_tracked of a BatchNorm1d"
    run = joined(model)
    with pytest.raises(RuntimeError, match=f"buffer {words} was written while unit 0"):
        for step in run:
            for micro in step:
                model.train()
                model(torch.ones(4, 2) * micro.unit).sum().backward()


def test_replicas_that_differ_at_the_start_are_refused() -> None:
    def build(what: str) -> Tuple[Any, Any]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        model.register_buffer("mask", torch.ones(2, dtype=torch.int64))
        model[0].requires_grad_(False)
        optim: Any = torch.optim.SGD(model[1].parameters(), 0.1)
        if what == "frozen":
            nn.init.zeros_(model[0].bias)
        elif what == "trained":
            nn.init.zeros_(model[1].bias)
        elif what == "buffer":
            model.mask[1] = 0
        elif what == "optimizer":
            optim = torch.optim.Adam(model[1].parameters(), 0.1)
        if what == "way":
            optim = torch.optim.SGD(model[1].parameters(), 0.1, foreach=True)
        return model, optim

    def serve() -> Any:
        return loop.serve("uncoded", workers=2, units=2, steps=2, length=6)

    for what, words in [
        ("frozen", "worker 0 and worker 1 differ in digest of what is not trained"),
        ("trained", "parameters to begin with.*before step 0 and .*from one seed"),
        ("buffer", "parameters to begin with"),
        ("optimizer", "layout.*kinds of optimizers"),
        ("way", "layout.*fused, foreach or capturable"),
    ]:
        with pytest.raises(RuntimeError, match="nothing is trained"), serve() as coordinator:
            where = {"address": coordinator.address, "token": coordinator.token, "patience": 20.0}
            first = joined(*build(""), **where)
            with pytest.raises(ValueError, match=words):
                joined(*build(what), **where)
            # Who of the two is right is not known: the run ends for both.
            with pytest.raises(ValueError, match="nothing is trained"):
                next(iter(first))
    with serve() as coordinator:
        where = {"address": coordinator.address, "token": coordinator.token, "patience": 20.0}
        # Two that are alike are let in: the run begins, and is stopped before anybody leaves.
        first, second = joined(*build(""), **where), joined(*build(""), **where)
        coordinator.stop()
        assert coordinator.wait(30) is False
        first.close()
        second.close()


def test_the_digest_of_bits_is_the_librarys(monkeypatch: Any) -> None:
    from codedgrad import _native

    monkeypatch.setattr(host, "_SLICE", 1000)
    for size in (0, 1, 999, 1000, 1001, 4096):
        numbers = torch.randn(size, generator=torch.Generator().manual_seed(size))
        right = _native.digest_of_bits(numbers.numpy())
        assert int(host.sum_on_device(numbers)) % 2**64 == right
        assert host.digest_of_bits(numbers) == right
    # Two that change places, a sign, and one number of 16 bits.
    numbers = torch.tensor([1.0, 2.0, 0.0])
    for other in ([2.0, 1.0, 0.0], [1.0, 2.0, -0.0]):
        assert host.digest_of_bits(torch.tensor(other)) != (
            host.digest_of_bits(numbers)
        )
    half = torch.tensor([-1.5], dtype=torch.bfloat16)
    as_bits = half.view(torch.int16).to(torch.int32) & 0xFFFF
    assert host.digest_of_bits(half) == (
        _native.digest_of_bits(as_bits.view(torch.float32).numpy())
    )


def test_ways_of_an_optimizer_are_as_pytorch_chooses_them() -> None:
    from codedgrad._torch.model import kinds_of

    parameters = [nn.Parameter(torch.zeros(2))]

    def ways(kind: Any, **told: Any) -> Any:
        [[name, [found]]] = kinds_of([kind(parameters, **{"lr": 0.1, **told})])
        assert name == kind.__name__
        return found

    # On the CPU one by one, unless somebody says otherwise.
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        assert ways(kind) == ways(kind, foreach=False) == ways(kind, fused=False) == []
        assert ways(kind, foreach=True) == ["foreach"]
        assert ways(kind, fused=True) == ["fused"]
    assert ways(torch.optim.Rprop) == []


def test_what_is_counted_before_the_micro_batches_is_named() -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optim, 0.9)
    run = joined(model, optim, state={"scheduler": scheduler})
    with pytest.raises(RuntimeError, match="changed between .for step in run:.*end of the body"):
        for step in run:
            scheduler.step()
            for micro in step:
                pass


def test_a_process_that_is_told_to_join_does_not_train_alone(monkeypatch: Any) -> None:
    with pytest.raises(ValueError, match="worker= without an address"):
        joined(nn.Linear(2, 2), worker=1)
    monkeypatch.setenv("CODEDGRAD_WORKER", "1")
    with pytest.raises(ValueError, match="CODEDGRAD_WORKER without an address"):
        joined(nn.Linear(2, 2))


@pytest.mark.parametrize("given", [True, False])
def test_an_optimizer_that_makes_no_step_is_told(given: bool, recwarn: Any) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    for step in joined(model, optim if given else None, steps=4):
        for _ in step:
            model(torch.ones(1, 2)).sum().backward()
    texts = [str(each.message) for each in recwarn.list]
    assert sum("no optimizer passed to join" in text for text in texts) == given


def test_losses_may_take_turns(recwarn: Any) -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 1)]
    optims = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for step in joined(models, optims, steps=6):
        before = [bits(model) for model in models]
        for micro in step:
            made = models[0](torch.ones(1, 2))
            turn = micro.step % 2
            loss = models[1](made if turn == 0 else made.detach()).square().mean()
            loss.backward()
        assert turn == step.index % 2
        assert (models[0].weight.grad is None) == (turn == 1)
        optims[turn].step()
        changed = [bits(model) != old for model, old in zip(models, before)]
        assert changed == [turn == 0, turn == 1]
    assert not recwarn.list


def test_the_scaler_and_refused_steps_as_events() -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    scaler = coded.GradScaler(init_scale=4.0)
    run = joined(model, optim, steps=3, state={"scaler": scaler})
    with pytest.warns(RuntimeWarning, match="step 0 was refused.*units 0 to 1"):
        for event in run.events():
            if isinstance(event, coded.Compute):
                for micro in event:
                    factor = math.inf if event.step == 0 else 1.0
                    scaler.scale(model(torch.ones(1, 2)).sum() * factor).backward()
                with pytest.raises(RuntimeError, match="not whole yet"):
                    optim.step()
            else:
                scaler.step(optim)
                scaler.update()
    assert scaler.get_scale() == 2.0 and run.report()["skipped"] == 1
    copy.deepcopy(scaler)


@pytest.mark.parametrize("where", ["inside", "after break"])
def test_the_optimizer_steps_on_whole_gradients_alone(where: str) -> None:
    model = nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), 0.1)
    run = joined(model, optim)
    with pytest.raises(RuntimeError, match="the gradient is not whole yet"):
        for step in run:
            for micro in step:
                model(torch.ones(1, 2)).sum().backward()
                if where == "after break":
                    break
                optim.step()
            optim.step()
    # The optimizer is free again once the run is left.
    assert run.over
    optim.step()


def test_a_unit_without_backward_is_named() -> None:
    model = nn.Linear(2, 2)
    run = joined(model)
    with pytest.raises(RuntimeError, match="unit 0 of batch 0 left no gradient.*micro.nothing()"):
        for step in run:
            for micro in step:
                model(torch.ones(1, 2)).sum()
    for step in joined(nn.Linear(2, 2)):
        for micro in step:
            micro.nothing()
        assert step.applied


def test_another_model_is_named() -> None:
    length = coded.length(nn.Linear(2, 2))
    cases = [
        (nn.Linear(2, 2).bfloat16(), "number format of the parameters.*bfloat16"),
        (nn.Sequential(nn.Linear(2, 2)), "layout"),
    ]
    for other, words in cases:
        run = loop.serve("uncoded", workers=2, units=2, steps=2, length=length)
        with pytest.raises(RuntimeError, match="nothing is trained"), run as coordinator:
            where = {"address": coordinator.address, "token": coordinator.token, "patience": 0.0}
            with pytest.raises(ValueError, match="numbers in a gradient: 9 here, 6 in the run"):
                joined(nn.Linear(2, 3), **where)
            first = joined(nn.Linear(2, 2), **where)
            with pytest.raises(ValueError, match=words):
                joined(other, **where)
            first.close()


def test_a_state_that_does_not_fit_is_refused_and_code_in_it_is_not_run() -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (warnings.warn, ("this must not run",))

    class Odd:
        def state_dict(self) -> Dict[str, Any]:
            return {"x": Harmful()}

        def load_state_dict(self, state: Dict[str, Any]) -> None:
            raise AssertionError("it was loaded")

    with pytest.raises(TypeError, match="state\\['odd'\\] cannot be handed over.*warn"):
        joined(nn.Linear(2, 2), state={"odd": Odd()})
    # Nor does a worker load what another one sends it all the same.
    model = nn.Linear(2, 2)
    before, run = bits(model), joined(model)
    harmful = host.write_state({"models": [{"x": Harmful()}], "optimizers": [], "state": {}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Exception, match="[Ww]eights.only"):
            run._session.arrays.load([harmful])
    assert bits(model) == before
    run.close()


def test_a_state_that_fits_in_part_changes_nothing() -> None:
    class Odd:
        def state_dict(self) -> Dict[str, Any]:
            return {"x": 1}

        def load_state_dict(self, state: Dict[str, Any]) -> None:
            if state["x"] != 1:
                raise ValueError("x is no 1")

    model = nn.Linear(2, 2)
    before, run = bits(model), joined(model, state={"odd": Odd()})
    other = {name: torch.ones_like(value) for name, value in model.state_dict().items()}
    content = {"models": [other], "optimizers": [], "state": {"odd": {"x": 2}}}
    state = host.write_state(content)
    native = run._session.native

    class Given:
        """The native worker, with a state that is to be taken over."""

        next_step, refuse = native.next_step, staticmethod(native.refuse)

        def state(self) -> List[bytes]:
            return [state]

    run._session.native = Given()  # type: ignore[assignment]
    with pytest.warns(RuntimeWarning, match="does not fit: x is no 1"):
        with pytest.raises(RuntimeError, match="not current"):
            # No worker has sent one: there is nothing to refuse.
            run._session.load_state(1)
    assert bits(model) == before
    run.close()


def test_numbers_of_numpy_and_states_in_f32_are_handed_over_as_they_are() -> None:
    model = nn.Linear(2, 2).bfloat16()
    optim = torch.optim.SGD(model.parameters(), lr=np.float64(0.1))
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optim, [np.int64(2)], gamma=np.float64(0.5))
    run = joined(model, optim, state={"scheduler": scheduler})
    for parameter in model.parameters():
        optim.state[parameter]["master"] = torch.full_like(parameter, 1.0, dtype=torch.float32) / 3
    state = run._session.arrays.save()
    for parameter in model.parameters():
        optim.state[parameter]["master"].zero_()
    run._session.arrays.load(state)
    for parameter in model.parameters():
        master = optim.state[parameter]["master"]
        assert master.dtype is torch.float32 and bool(master.eq(torch.tensor(1.0) / 3).all())
    run.close()
