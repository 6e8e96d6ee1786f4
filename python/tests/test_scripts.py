"""What becomes of a prepared script does not depend on the scheme: the same weights, or the same error."""

from __future__ import annotations

import contextlib
import copy
import re
import sys
import weakref
from typing import Any, Callable, Dict, Iterator, List, Tuple

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import codedgrad.torch as coded  # noqa: E402
from codedgrad import loop  # noqa: E402
from codedgrad._core.exits import is_misuse  # noqa: E402
from codedgrad._torch import outputs  # noqa: E402
from runs import together  # noqa: E402

SCHEMES = ["uncoded", "groups:s=1", "queue:m=1", "auto"]
SAMPLES, ROWS, WORKERS, EPOCHS = 16, 2, 2, 2
STEPS = EPOCHS * SAMPLES // (ROWS * WORKERS)


@pytest.fixture(autouse=True)
def left_behind() -> Iterator[None]:
    yield
    for iterations in [each() for each in outputs._watching]:
        if iterations is not None:
            iterations.leave()
    assert torch.autograd.backward is not outputs._backward


class Count(nn.Module):
    """Its weights say how often each sample was applied, at which rate."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(SAMPLES))
        self.teacher = nn.Parameter(torch.ones(SAMPLES), requires_grad=False)

    def forward(self, place: Any) -> Any:
        return self.w[place] * self.teacher[place]


class Script:
    """A script's objects, and the loop that most have."""

    def __init__(self, where: Dict[str, Any]):
        self.where = where
        self.module = Count()
        self.optimizer: Any = torch.optim.SGD(self.module.parameters(), lr=1.0)
        self.more: Dict[str, Any] = {}

    def prepare(self, *schedulers: Any, **more: Any) -> "Script":
        numbers: Any = list(range(SAMPLES))
        self.model, self.optimizer, self.loader, *_ = coded.prepare(
            self.module, self.optimizer, DataLoader(numbers, ROWS, shuffle=True), *schedulers,
            epochs=EPOCHS, units=WORKERS, **self.where, **more,
        )  # fmt: skip
        self.run = self.model.run
        return self

    def train(self, *after: Callable[[], Any], epoch: Callable[[], Any] = lambda: None) -> None:
        for _ in range(EPOCHS):
            for place in self.loader:
                self.model(place).sum().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                for each in after:
                    each()
            epoch()

    def halve(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5


def half(optimizer: Any, every: int = 3) -> Any:
    return lr_scheduler.StepLR(optimizer, every, 0.5)


def plateau(optimizer: Any) -> Any:
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)


def sequential(optimizer: Any) -> Any:
    parts = [half(optimizer, 1), lr_scheduler.ConstantLR(optimizer, 0.25, 8)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def chained(optimizer: Any) -> Any:
    return lr_scheduler.ChainedScheduler([half(optimizer), half(optimizer, 2)])


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 2.0, total_steps=4 * STEPS)


class OfMyOwn:
    """As users write them."""

    def __init__(self, optimizer: Any, every: int):
        self.optimizer, self.every, self.count = optimizer, every, 0

    def step(self) -> None:
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.5 ** (self.count // self.every)


def given(s: Script) -> None:
    s.prepare(scheduler := half(s.optimizer)).train(scheduler.step)


def made_before(make: Any, *metrics: float) -> Callable[[Script], None]:
    def script(s: Script) -> None:
        scheduler = make(s.optimizer)
        s.prepare().train(lambda: scheduler.step(*metrics))

    return script


def made_after(make: Any, *metrics: float) -> Callable[[Script], None]:
    def script(s: Script) -> None:
        scheduler = make(s.prepare().optimizer)
        s.train(lambda: scheduler.step(*metrics))

    return script


def of_epochs(s: Script) -> None:
    scheduler = half(s.optimizer, 1)
    s.prepare().train(epoch=scheduler.step)


def by_index(s: Script) -> None:
    s.prepare()

    def rate() -> None:
        s.optimizer.param_groups[0]["lr"] = 0.5 ** ((s.run.index + 1) // 2)

    s.train(lambda: s.run.sync_gradients and rate())


def once_a_step(what: Callable[[Script], Any]) -> Callable[[Script], None]:
    return lambda s: s.prepare().train(lambda: s.run.sync_gradients and what(s))


def iterations(s: Script) -> None:
    s.model, s.optimizer = coded.prepare(
        s.module, s.optimizer, steps=STEPS, units=WORKERS, **s.where
    )
    s.run = s.model.run
    for index in s.run.iterations():
        s.optimizer.param_groups[0]["lr"] = 0.5**index
        s.model(torch.arange(4)).sum().backward()
        s.optimizer.step()


def accumulated(s: Script) -> None:
    s.prepare(accumulate=2)
    for _ in range(EPOCHS):
        for i, place in enumerate(s.loader):
            s.model(place).sum().backward()
            if i % 2:
                torch.nn.utils.clip_grad_norm_(s.model.parameters(), 1.0)
                s.optimizer.step()
                s.optimizer.zero_grad()


def average(s: Script) -> None:
    with torch.no_grad():
        s.module.teacher.mul_(0.5).add_(s.module.w, alpha=0.5)


def average_of_data(s: Script) -> None:
    s.module.teacher.data.mul_(0.5).add_(s.module.w.data, alpha=0.5)


def average_beside(s: Script) -> None:
    teacher = copy.deepcopy(s.module)
    s.prepare()

    def follow() -> None:
        teacher.w.data.mul_(0.5).add_(s.module.w.data, alpha=0.5)

    s.train(follow)


def norms(s: Script) -> None:
    s.prepare()
    found: List[float] = []

    def look() -> None:
        found.append(float(torch.nn.utils.clip_grad_norm_(s.model.parameters(), 100.0)))
        assert found[-1] > 0 or not any(found), "what logs show goes on"
        if s.run.sync_gradients:
            assert found[-1] > 0

    for _ in range(EPOCHS):
        for place in s.loader:
            s.model(place).sum().backward()
            look()
            s.optimizer.step()
            s.optimizer.zero_grad()


def adaptive(s: Script) -> None:
    s.prepare()
    norms: List[float] = []
    for _ in range(EPOCHS):
        for place in s.loader:
            s.model(place).sum().backward()
            limit = 2 * max(norms, default=1e3) or 1e3
            norms.append(float(torch.nn.utils.clip_grad_norm_(s.model.parameters(), limit)))
            if norms[-1] != norms[-1]:
                raise FloatingPointError("the norm is not finite")
            s.optimizer.step()
            s.optimizer.zero_grad()


class Follows(torch.optim.SGD):
    """Its step updates a moving average."""

    average: Any = None

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            self.average.mul_(0.5).add_(self.param_groups[0]["params"][0], alpha=0.5)


def average_by_hook(s: Script) -> None:
    s.optimizer.register_step_post_hook(lambda *_: average(s))
    s.prepare().train()


def average_by_optimizer(s: Script) -> None:
    s.optimizer = Follows([s.module.w], lr=1.0)
    s.optimizer.average = s.module.teacher
    s.prepare().train()


def restarts(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3)


def restarted(place: Callable[[Script, int], Any], given: bool = False) -> Callable[[Script], None]:
    """`scheduler.step(epoch + i / len(loader))`, as PyTorch's page has it."""

    def script(s: Script) -> None:
        scheduler = restarts(s.optimizer)
        s.prepare(*[scheduler] * given)
        for epoch in range(EPOCHS):
            for i, batch in enumerate(s.loader):
                s.model(batch).sum().backward()
                s.optimizer.step()
                s.optimizer.zero_grad()
                scheduler.step(place(s, epoch * len(s.loader) + i) / len(s.loader))

    return script


RIGHT: Dict[str, Callable[[Script], None]] = {
    "plain": lambda s: s.prepare().train(),
    "schedule given": given,
    "schedule not given": made_before(half),
    "schedule not given, never acts": made_before(lambda optimizer: half(optimizer, 10)),
    "schedule made after": made_after(half),
    "sequence before": made_before(sequential),
    "sequence after": made_after(sequential),
    "chain": made_after(chained),
    "plateau": made_before(plateau, 1.0),
    "plateau after": made_after(plateau, 1.0),
    "longer cycle": made_before(one_cycle),
    "schedule of epochs": of_epochs,
    "rate by index": by_index,
    "rate once a step": once_a_step(lambda s: s.halve()),
    "rate by epochs": lambda s: s.prepare().train(epoch=s.halve),
    "iterations": iterations,
    "accumulated": accumulated,
    "average once a step": once_a_step(average),
    "norms": norms,
    "average by a hook": average_by_hook,
    "average by the optimizer": average_by_optimizer,
    "restarts by index": restarted(lambda s, i: s.run.index + 1),
    "restarts given, by index": restarted(lambda s, i: s.run.index + 1, given=True),
    "restarts that count": made_before(restarts),
}


def written(s: Script) -> None:
    s.prepare()
    for place in s.loader:
        with torch.no_grad():
            s.module.w.add_(1.0)
        s.model(place).sum().backward()
        s.optimizer.step()


def scaled(s: Script) -> None:
    s.prepare()
    scaler = torch.amp.GradScaler("cpu")
    for place in s.loader:
        scaler.scale(s.model(place).sum()).backward()
        scaler.step(s.optimizer)
        scaler.update()


def gradients(s: Script) -> None:
    s.prepare()
    for place in s.loader:
        (s.module.w.grad,) = torch.autograd.grad(s.model(place).sum(), [s.module.w])
        s.optimizer.step()


def twice(s: Script) -> None:
    s.prepare().train(lambda: s.model(torch.arange(2)).sum().backward())


def no_step(s: Script) -> None:
    s.prepare()
    for place in s.loader:
        s.model(place).sum().backward()


def too_often(s: Script) -> None:
    s.prepare(accumulate=2).train()


def early_schedule(s: Script) -> None:
    s.prepare()
    scheduler = half(s.optimizer)
    for place in s.loader:
        scheduler.step()
        s.model(place).sum().backward()
        s.optimizer.step()


def at_the_top(what: Callable[[Script], Any]) -> Callable[[Script], None]:
    def script(s: Script) -> None:
        s.prepare()
        for _ in range(EPOCHS):
            for place in s.loader:
                what(s)
                s.model(place).sum().backward()
                s.optimizer.step()
                s.optimizer.zero_grad()

    return script


def average_before(s: Script) -> None:
    s.prepare()
    for place in s.loader:
        s.model(place).sum().backward()
        average(s)
        s.optimizer.step()


WRONG: Dict[str, Tuple[str, Callable[[Script], None]]] = {
    "schedule of its own": (
        "lr of an optimizer was changed",
        made_before(lambda optimizer: OfMyOwn(optimizer, 1)),
    ),
    "schedule of its own that changes seldom": (
        "lr of an optimizer was changed",
        made_after(lambda optimizer: OfMyOwn(optimizer, 4)),
    ),
    "rate": ("lr of an optimizer was changed", lambda s: s.prepare().train(s.halve)),
    "rate at the top": ("lr of an optimizer was changed", at_the_top(lambda s: s.halve())),
    "restarts": ("scheduler.step.*run.index", restarted(lambda s, i: i)),
    "restarts given": ("scheduler.step.*run.index", restarted(lambda s, i: i, given=True)),
    "average before the step": ("teacher .*run.sync_gradients", average_before),
    "average": ("teacher .*run.sync_gradients", lambda s: s.prepare().train(lambda: average(s))),
    "average of data": (
        "teacher .*run.sync_gradients",
        lambda s: s.prepare().train(lambda: average_of_data(s)),
    ),
    "average beside": ("teacher.w .*run.sync_gradients", average_beside),
    "written": ("parameter w was written", written),
    "torch's scaler": ("coded.GradScaler", scaled),
    "autograd.grad": ("torch.autograd.grad.*codedgrad.torch.join", gradients),
    "two backward passes": ("several backward passes", twice),
    "no step": ("step.* was not called", no_step),
    "step in each batch of two": ("after 1 of the 2 batches.*accumulate=", too_often),
    "schedule before": ("comes after optimizer.step", early_schedule),
}


def outcome(script: Callable[[Script], None], scheme: str) -> Tuple[List[Any], List[BaseException]]:
    """The weights of the workers that have made all steps, and the errors of others."""
    weights: List[Any] = []
    errors: List[BaseException] = []

    def work(k: int, where: Dict[str, Any], coordinator: loop.Coordinator) -> None:
        made = Script(where)
        try:
            script(made)
            if made.run.complete:
                weights.append((made.module.w.tolist(), made.module.teacher.tolist()))
        except (Exception, SystemExit) as error:
            errors.append(error)
            coordinator.stop()

    steps, rows = STEPS, 1 if script is iterations else ROWS
    if script in (accumulated, too_often):
        steps, rows = STEPS // 2, 2 * ROWS
    with contextlib.suppress(RuntimeError):
        together(
            scheme, work, workers=WORKERS, units=WORKERS, steps=steps, length=SAMPLES,
            unit_samples=rows,
        )  # fmt: skip
    return weights, errors


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right_scripts_come_to_the_same_weights(name: str) -> None:
    found = [outcome(RIGHT[name], scheme) for scheme in SCHEMES]
    assert not any(errors for _, errors in found), found
    weights = [each for weights, _ in found for each in weights]
    assert len(weights) == len(SCHEMES) * WORKERS and all(each == weights[0] for each in weights)


@pytest.mark.parametrize("name", sorted(WRONG))
def test_wrong_scripts_come_to_the_same_error(name: str) -> None:
    says, script = WRONG[name]
    for scheme in SCHEMES:
        weights, errors = outcome(script, scheme)
        assert not weights, f"{scheme}: it trains something"
        kinds = (RuntimeError, TypeError)
        assert any(isinstance(e, kinds) and re.search(says, str(e)) for e in errors), errors


def alone(**more: Any) -> Script:
    return Script({}).prepare(**more)


@pytest.mark.parametrize("how", ["decay", "clamp", "decay once a step"])
def test_parameters_change_where_a_step_is_decided(how: str) -> None:
    s = alone()

    @torch.no_grad()
    def change() -> None:
        if how == "clamp":
            s.module.w.clamp_(-100, 100)
        elif how == "decay" or s.run.sync_gradients:
            s.module.w.data.add_(0.5)

    if how != "decay":
        s.train(change)
        return
    with pytest.raises(RuntimeError, match="parameter w was changed.*run.sync_gradients"):
        s.train(change)


@pytest.mark.parametrize("hidden", [False, True])
def test_an_error_about_a_gradient_that_is_none_says_why(hidden: bool, monkeypatch: Any) -> None:
    told: List[str] = []
    shows = lambda kind, error, trace: told.append(str(error))  # noqa: E731
    monkeypatch.setattr("sys.excepthook", shows)
    s = alone()
    if hidden:
        # Loops that are left install it once.
        for _ in range(2):
            place = next(around := (place for place in s.loader))
            s.model(place).sum().backward()
            s.optimizer.step()
            around.close()
    # As a progress bar does.
    batches = (place for place in s.loader) if hidden else s.loader
    with pytest.raises(AttributeError, match="has no attribute 'norm'") as raised:
        for place in batches:
            s.model(place).sum().backward()
            s.module.w.grad.norm()
    del batches
    sys.excepthook(raised.type, raised.value, None)
    assert len(told) == 1 and "if model.run.sync_gradients" in told[0]
    assert hidden or "if model.run.sync_gradients" in str(raised.value)
    s.run.close()
    assert sys.excepthook is shows


def test_a_refused_step_has_the_norm_of_the_one_before() -> None:
    s = alone()
    clip = torch.nn.utils.clip_grad_norm_
    norms = []
    with pytest.raises(AttributeError, match="this step was refused.*p.grad is None"):
        for place in s.loader:
            (s.model(place).sum() * (torch.nan if norms else 1.0)).backward()
            if s.run.sync_gradients:
                norms.append(clip(s.model.parameters(), 1.0).item())
                if len(norms) > 1:
                    s.module.w.grad.norm()
            s.optimizer.step()
    assert norms[0] == norms[1] > 0


def test_other_errors_say_nothing_of_gradients() -> None:
    s = alone()
    with pytest.raises(AttributeError) as raised:
        for place in s.loader:
            s.model(place).sum().backward()
            s.optimizer.step()
            if s.run.sync_gradients:
                None.norm()  # type: ignore[attr-defined]
    assert "codedgrad" not in str(raised.value)


@pytest.mark.parametrize("name", ["clip_grad_norm_", "get_total_norm"])
def test_norms_are_those_of_the_last_step_until_one_is_decided(name: str) -> None:
    if not hasattr(torch.nn.utils, name):
        pytest.skip("this PyTorch has no such function")
    s = alone()
    decided = [0.0]

    def norm() -> float:
        assert torch.nn.utils.clip_grad_norm_([torch.full((4,), 3.0)], 1.0) == 0
        if name == "clip_grad_norm_":
            return float(torch.nn.utils.clip_grad_norm_(s.model.parameters(), 1e3))
        gradients = [each.grad for each in s.model.parameters() if each.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    for i, place in enumerate(s.loader):
        (s.model(place).sum() * (1 + i)).backward()
        if s.run.sync_gradients:
            decided.append(norm())
        else:
            assert norm() == decided[-1]
        s.optimizer.step()
    assert len(decided) == 1 + STEPS // EPOCHS and decided == sorted(set(decided))
    s.run.close()
    assert torch.nn.utils.clip_grad_norm_(Count().parameters(), 1.0) == 0


def test_clipping_by_norms_of_before_makes_no_weight_nan() -> None:
    for scheme in SCHEMES:
        weights, errors = outcome(adaptive, scheme)
        assert not errors and torch.isfinite(torch.tensor(weights)).all()


@pytest.mark.parametrize("length", [STEPS, 4 * STEPS])
def test_a_schedule_of_another_length_is_told(length: int, recwarn: Any) -> None:
    s = Script({})
    cycle = lr_scheduler.OneCycleLR(s.optimizer, 2.0, total_steps=length)
    cosine = lr_scheduler.CosineAnnealingLR(s.optimizer, length)
    s.prepare(cycle, cosine).run.close()
    said = " ".join(str(each.message) for each in recwarn.list)
    assert ("total_steps=32, and the run has 8 steps" in said) == (length != STEPS)
    assert ("T_max=32" in said) == (length != STEPS)


def test_a_scheduler_that_is_not_given_is_handed_over() -> None:
    from codedgrad._torch.watch import Kept

    def made(kept: Kept) -> Any:
        scheduler = half(torch.optim.SGD(Count().parameters(), lr=1.0))
        assert kept.meet(scheduler) and not kept.meet(scheduler)
        return scheduler

    here, early, late = Kept(1), Kept(1), Kept(1)
    scheduler, other = made(here), made(early)
    scheduler.step()
    here.ends[here.place_of(scheduler)] = 7
    for kept in (early, late):
        kept.load_state_dict(here.state_dict())
        assert kept.state_dict() == here.state_dict()
    assert other.last_epoch == made(late).last_epoch == 1 and late.ends == [-1, 7]


class Moco(Count):
    def forward(self, place: Any) -> Any:
        self.teacher.data = self.teacher.data * 0.5 + self.w.data * 0.5
        return super().forward(place)


def test_parameters_that_a_unit_writes_are_named() -> None:
    def step(how: str) -> None:
        model: Any = Moco() if how == "frozen" else Count()
        run = coded.join(model, torch.optim.SGD([model.w], lr=1.0), units=2, steps=1)
        for each in run:
            for _ in each:
                model(torch.arange(2)).sum().backward()
                if how == "data":
                    model.w.data.add_(1.0)
                elif how == "in place":
                    with torch.no_grad():
                        model.w.add_(1.0)

    step("")
    for how in ("data", "in place", "frozen"):
        name = "teacher" if how == "frozen" else "w"
        with pytest.raises(RuntimeError, match=f"parameter {name} was written while unit"):
            step(how)


@pytest.mark.parametrize("how", ["locals", "frame"])
def test_what_a_script_has_of_its_names_stays(how: str) -> None:
    s = alone()

    def train(rate: float, epochs: int) -> None:
        config = locals() if how == "locals" else sys._getframe().f_locals
        before = {"rate": 2.0, "epochs": epochs}
        config["rate"] = before["rate"]
        s.train()
        assert how == "frame" or {name: config[name] for name in before} == before
        assert config["epochs"] == epochs

    train(1.0, 3)


def test_what_a_function_drops_is_not_kept() -> None:
    s = alone()
    large = Count()
    gone = weakref.ref(large)
    for place in s.loader:
        del large
        s.model(place).sum().backward()
        s.optimizer.step()
        break
    assert gone() is None
    s.run.close()


def test_what_a_sample_does_to_a_function_in_c_is_not_the_scripts_misuse() -> None:
    s = Script({})
    samples: Any = [torch.ones(1), None]
    loader = DataLoader(samples, 2, collate_fn=torch.stack)
    s.model, loader = coded.prepare(s.module, loader, epochs=1, units=1)
    with pytest.raises(TypeError) as raised:
        next(iter(loader))
    assert not is_misuse(raised.value)
    s.model.run.close()


@pytest.mark.parametrize("beside", ["statistics", "no shape yet"])
def test_what_lies_beside_may_have_statistics_or_no_shape(beside: str) -> None:
    s = alone()
    teacher: Any = nn.BatchNorm1d(2) if beside == "statistics" else nn.LazyLinear(1)

    @torch.no_grad()
    def follow() -> None:
        teacher(torch.ones(2, 2))

    s.train(follow)


class Unplain(lr_scheduler.StepLR):
    """A state that holds more than plain values."""

    def state_dict(self) -> Dict[str, Any]:
        return {**super().state_dict(), "made by": self.__class__}


def test_a_scheduler_that_cannot_be_handed_over_goes_on(recwarn: Any) -> None:
    s = Script({})
    scheduler = Unplain(s.optimizer, 3, 0.5)
    s.prepare().train(scheduler.step)
    assert scheduler.last_epoch == s.run.index + 1
    said = [str(each.message) for each in recwarn.list if "not handed over" in str(each.message)]
    assert len(said) == 1 and "Unplain" in said[0] and "state[" not in said[0]


class Rewriting(nn.Module):
    """Has its parameters elsewhere, as `flatten_parameters` of an LSTM does, and writes them as they
    are; more of them than are looked at in every unit."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit
        self.w = nn.ParameterList(torch.zeros(SAMPLES) for _ in range(40))
        self.frozen = nn.Parameter(torch.ones(1000), requires_grad=False)

    @torch.no_grad()
    def rewrite(self) -> None:
        for each in (*self.w, self.frozen):
            each.data = each.data.clone()
            each.clamp_(-self.limit, self.limit)

    def forward(self, place: Any) -> Any:
        self.rewrite()
        return sum(each[place] for each in self.w) * self.frozen[0]


@pytest.mark.parametrize("where", ["unit", "undecided", "beside"])
@pytest.mark.parametrize("limit", [100.0, 0.25])
def test_what_is_written_as_it_is_was_not_written(where: str, limit: float) -> None:
    s = Script({})
    beside = Rewriting(limit)
    if where != "beside":
        s.module = beside
        s.optimizer = torch.optim.SGD(s.module.parameters(), lr=1.0)
    if where == "unit":
        s.prepare()
    else:
        beside.forward = lambda place: beside.w[0][place]  # type: ignore[method-assign]
        s.prepare()
        # So that there is something to be written.
        beside.limit = limit
    after = [] if where == "unit" else [lambda: beside.rewrite()]
    if limit == 100.0:
        s.train(*after)
        return
    says = "was written while unit" if where == "unit" else "was changed in an iteration"
    with pytest.raises(RuntimeError, match=says):
        s.train(*after)


@pytest.mark.parametrize("units", [1, 2])
def test_rows_that_an_embedding_writes_are_seen(units: int) -> None:
    model = nn.Embedding(5000, 8, max_norm=0.5)
    run = coded.join(model, torch.optim.SGD(model.parameters(), lr=1.0), units=units, steps=2)
    with pytest.raises(RuntimeError, match="parameter weight was written while unit 0"):
        for step in run:
            for _ in step:
                model(torch.tensor([4321])).sum().backward()


class Within(torch.optim.Optimizer):
    """As sharpness-aware minimisation has another optimizer within it."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": 1.0})
        self.inner = torch.optim.SGD(self.param_groups, lr=1.0)
        self.param_groups = self.inner.param_groups


def test_an_optimizer_within_another_makes_its_step(recwarn: Any) -> None:
    model = Count()
    optimizer = Within([model.w])
    run = coded.join(model, optimizer, units=1, steps=4)
    for step in run:
        for _ in step:
            model(torch.arange(2)).sum().backward()
        optimizer.inner.step()
    s = Script({})
    s.optimizer = Within([s.module.w])
    s.prepare()
    for place in s.loader:
        s.model(place).sum().backward()
        if s.run.sync_gradients:
            s.optimizer.inner.step()
    assert not recwarn.list, [str(each.message) for each in recwarn.list]
