"""The examples with mixtures of experts: a small GPT, and a recommender."""

import copy
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]

import codedgrad.torch as coded  # noqa: E402
from test_ddp import under_ddp  # noqa: E402
from test_launch import Launched, script  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))
import moe  # noqa: E402
import nanogpt  # noqa: E402
import onerec  # noqa: E402

UNITS, ROWS, CONTEXT, LAYERS = 8, 4, 16, 1
SIZES = ["--units", str(UNITS), "--rows", str(ROWS), "--context", str(CONTEXT)]
SIZES += ["--layers", str(LAYERS), "--width", "32", "--heads", "2", "--experts", "8"]
STEPS = 40

# Runs an example as a worker: one is late in each unit, and one is killed in its first life and
# takes over a state in its second, for which the others wait.
WRAPPER = """
import os, pathlib, runpy, signal, sys, time
import codedgrad.torch as coded
late, killed, back = os.environ["TEST_LATE"], os.environ["TEST_KILLED"], sys.argv[1]
me, again = os.environ["CODEDGRAD_WORKER"], os.environ["CODEDGRAD_EPOCH"] != "0"
last_rank = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
join, report = coded.join, coded.Micro.report

def told(*args, **kwargs):
    run = join(*args, **kwargs)
    if me == killed and again:
        pathlib.Path(back).touch()
    return run

def delayed(micro, *scalars):
    if me == late:
        time.sleep(0.1)
    if me == killed and not again and last_rank and micro.step >= 4:
        os.kill(os.getpid(), signal.SIGKILL)
    while killed and micro.step >= 12 and not os.path.exists(back):
        time.sleep(0.01)
    return report(micro, *scalars)

coded.join, coded.Micro.report = told, delayed
del sys.argv[:2]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def objects(said: str) -> List[Dict[str, Any]]:
    """What processes have printed as JSON: those of one worker may be on one line."""
    found, place = [], said.find('{"')
    while place >= 0:
        value, place = json.JSONDecoder().raw_decode(said, place)
        found.append(value)
        place = said.find('{"', place)
    return found


class Example:
    """An example: `alone` in this process, or a `codedgrad run` of several."""

    def __init__(
        self, module: Any, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        self.module, self._patch, self._capsys = module, patch, capsys

    def alone(self, *told: str) -> Dict[str, Any]:
        self._patch.setattr(sys, "argv", [f"{self.module.__name__}.py", *told])
        self._capsys.readouterr()
        self.module.main()
        found: Dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return found

    def run(
        self,
        folder: Path,
        *told: str,
        workers: int = 4,
        scheme: str = "groups:s=1",
        late: Optional[int] = None,
        killed: Optional[int] = None,
        ranks: int = 1,
    ) -> "Results":
        names = {"TEST_LATE": late, "TEST_KILLED": killed}
        for name, worker in names.items():
            self._patch.setenv(name, "" if worker is None else str(worker))
        file = str(EXAMPLES / f"{self.module.__name__}.py")
        command = [script(folder, WRAPPER), str(folder / "back"), file, *told]
        if ranks > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            command = [*torchrun, str(ranks), *command]
        options = ["-n", str(workers), "--scheme", scheme, "--log-steps", "2", "--kill-after", "40"]
        with Launched(folder, *options, *command) as run:
            assert run.ends() == 0, run.said()
            said, records = run.said(), run.records()
        lines = objects(said)
        assert len(lines) == workers * ranks, said
        assert (killed is None) == ("started again in" not in said), said
        return Results(lines, records, said)


class Results:
    def __init__(self, lines: List[Dict[str, Any]], records: List[Dict[str, Any]], said: str):
        self.lines, self.records, self.said = lines, records, said

    def counts(self, size: int) -> Any:
        """The decoded counts of each step: the last scalars."""
        return np.array([record["tail"][-size:] for record in self.records])


@pytest.fixture
def gpt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Example:
    return Example(moe, monkeypatch, capsys)


@pytest.fixture
def recommender(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Example:
    return Example(onerec, monkeypatch, capsys)


def test_one_late_and_one_killed_and_biases_are_those_of_one_process(
    gpt: Example, tmp_path: Path
) -> None:
    told = ["--steps", str(STEPS), *SIZES]
    alone = gpt.alone(*told)
    # With activation checkpointing, which computes every forward pass twice.
    found = gpt.run(tmp_path, *told, "--recompute", late=3, killed=1)
    assert found.lines == [alone] * 4
    assert len(found.records) == STEPS
    counts = found.counts(LAYERS * 8).reshape(STEPS, LAYERS, 8)
    assert (counts == counts.round()).all()
    assert (counts.sum(2) == UNITS * ROWS * CONTEXT * 2).all()


def test_a_loop_of_iterations_has_the_same_numbers(gpt: Example, tmp_path: Path) -> None:
    told = ["--steps", "12", *SIZES]
    alone = gpt.alone(*told)
    assert gpt.alone(*told, "--door", "prepare") == alone
    assert gpt.run(tmp_path, *told, "--door", "prepare", late=3).lines == [alone] * 4


def test_biases_make_experts_equal(gpt: Example) -> None:
    told = ["--steps", "100", *SIZES]
    balanced, frozen = gpt.alone(*told), gpt.alone(*told, "--bias-rate", "0")
    assert balanced["load_last"] <= 1.5 < balanced["load_first"], balanced
    assert frozen["load_last"] > balanced["load_last"] + 0.2, (balanced, frozen)


SHORT = ["--steps", "4", *SIZES]


def of_ranks(*told: str) -> List[Dict[str, Any]]:
    """What two ranks come to without a coordinator."""
    return [json.loads(said) for said in under_ddp(EXAMPLES / "moe.py", 2, *SHORT, *told)]


def test_experts_over_the_ranks_of_a_worker_have_one_digest(gpt: Example, tmp_path: Path) -> None:
    alone = of_ranks("--shard")
    found = gpt.run(tmp_path, *SHORT, "--shard", workers=2, ranks=2, late=1)
    assert found.lines == [alone[0]] * 4 and alone[0] == alone[1]


@pytest.mark.slow
def test_experts_over_the_ranks_of_a_worker_train_as_whole_ones() -> None:
    (whole, _), (cut, _) = of_ranks(), of_ranks("--shard")
    # Numbers are added up in another order.
    assert whole.pop("digest") != cut.pop("digest")
    assert whole == pytest.approx(cut, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("cut", [[], ["--shard", "--recompute"]])
def test_a_worker_of_two_ranks_one_of_which_is_killed(
    cut: List[str], gpt: Example, tmp_path: Path
) -> None:
    told = ["--steps", "60", *SIZES, *cut]
    found = gpt.run(tmp_path, *told, workers=2, ranks=2, killed=1)
    assert found.lines == [found.lines[0]] * 4
    assert found.lines[0]["load_last"] < found.lines[0]["load_first"] - 0.5
    # Means over the ranks, as losses are.
    counts = found.counts(LAYERS * 8).reshape(60, LAYERS, 8)
    assert (counts.sum(2) == UNITS * ROWS * CONTEXT).all()


@pytest.mark.slow
def test_under_an_approximate_scheme_counts_are_fractions(gpt: Example, tmp_path: Path) -> None:
    told = ["--steps", "60", *SIZES]
    found = gpt.run(tmp_path, *told, workers=3, scheme="drop:b=1", late=2)
    assert found.lines == [found.lines[0]] * 3
    counts = found.counts(LAYERS * 8)
    assert (counts != counts.round()).any()
    assert found.lines[0]["load_last"] < found.lines[0]["load_first"] - 0.5


def in_turn(layer: Any, scores: Any) -> Any:
    """Experts for each token that no parameter changes."""
    first = torch.arange(len(scores)) % len(layer.experts)
    return torch.stack([first, (first + 1) % len(layer.experts)], 1)


def check_gradients(model: Any, loss: Callable[[Any], Any], patch: pytest.MonkeyPatch) -> None:
    """Every parameter's gradient at its largest entry against central differences."""
    patch.setattr(moe.Experts, "choose", in_turn)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.dim() > 1 else 1)
    # Rounding would be as large as the differences in float32.
    exact = copy.deepcopy(model).double()
    loss(model).backward()
    numbers = dict(exact.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        place = int(parameter.grad.abs().argmax())
        gradient, moved = float(parameter.grad.view(-1)[place]), []
        with torch.no_grad():
            for nudge in (1e-3, -2e-3, 1e-3):
                numbers[name].view(-1)[place] += nudge
                moved.append(float(loss(exact)))
        difference = (moved[0] - moved[1]) / 2e-3
        assert abs(difference - gradient) <= 2e-2 * abs(gradient), (name, difference, gradient)
        assert gradient != 0


def test_gradients_are_those_of_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["moe.py", *SIZES, "--dropout", "0", "--rows", "32"])
    args = moe.arguments()
    torch.manual_seed(1)
    model = moe.make_model(args)
    x, y = nanogpt.get_batch(args)
    check_gradients(model, lambda model: model(x, y), monkeypatch)


def test_gradients_of_the_recommender_are_those_of_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(1)
    model = onerec.Recommender(32, 4, 2)
    ids = onerec.Ids(onerec.vectors(1), 1)
    x = onerec.rows(ids, *onerec.records([[1, 0, sample] for sample in range(64)]))
    check_gradients(model, lambda model: model(x), monkeypatch)


def refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_impossible_numbers_of_experts_are_refused_by_name() -> None:
    linear = torch.nn.Linear(2, 2)
    refused(lambda: moe.Experts(2, [linear] * 2, 3), "active=3: each token has 1 to 2")
    refused(lambda: moe.Experts(2, [linear] * 2, 0), "active=0")
    refused(lambda: moe.Experts(2, [linear], 1), "experts=1: a router needs two")
    refused(lambda: onerec.Recommender(8, 4, 5), "active=5")
    refused(lambda: moe.check_ranks(8, 1), "experts=8 over 1 ranks: --shard needs two")
    refused(lambda: moe.check_ranks(8, 3), "experts=8 over 3 ranks")


@pytest.mark.parametrize("example", ["moe.py", "onerec.py"])
def test_a_script_that_is_told_so_ends_before_it_joins(
    example: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = moe if example == "moe.py" else onerec
    monkeypatch.setattr(sys, "argv", [example, "--experts", "4", "--active", "5"])
    with pytest.raises(SystemExit):
        module.main()
    assert "active=5: each token has 1 to 4 of the experts" in capsys.readouterr().err


def test_experts_that_are_cut_over_ranks_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    monkeypatch.setattr(sys, "argv", ["moe.py", *SIZES])
    model = moe.make_model(moe.arguments())
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        layer = model.blocks[0].network
        layer.router = torch.nn.Parameter(distribute_tensor(layer.router.data, mesh, [Shard(1)]))
        with pytest.raises(TypeError, match="router is cut over the ranks .*: give join mesh="):
            coded.join(model, None, units=2, steps=1)
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ids() -> Dict[int, Any]:
    return {seed: onerec.Ids(onerec.vectors(seed), seed) for seed in range(1, 6)}


def test_ids_tell_most_items_apart(ids: Dict[int, Any]) -> None:
    for seed, own in ids.items():
        books = sum(own.books[level][own.codes[:, level]] for level in range(onerec.LEVELS))
        assert np.abs(books + own.rest - onerec.vectors(seed)).max() <= 1e-5
        mse = own.summary["mse"]
        assert mse[0] > mse[1] > mse[2], mse
        assert min(own.summary["used"]) >= 15
        for level in own.codes.T:
            shares = np.bincount(level, minlength=onerec.CODES) / onerec.ITEMS
            assert onerec.entropy(shares) >= 0.7 * np.log(onerec.CODES)
    assert np.mean([own.summary["collisions"] for own in ids.values()]) <= 0.17


@pytest.mark.parametrize("item", [-1, 256])
def test_an_item_that_is_not_there_is_refused_by_name(item: int, ids: Dict[int, Any]) -> None:
    refused(lambda: ids[1].of(np.array([[3, item]])), f"item {item} is not there: .* 0 to 255")
    users, seen = onerec.records([[1, 0, 0]])
    seen[0, 3] = item
    refused(lambda: onerec.rows(ids[1], users, seen), f"item {item} is not there")


def test_rows_are_what_a_user_has_seen(ids: Dict[int, Any]) -> None:
    users, seen = onerec.records([[1, 0, sample] for sample in range(50)])
    assert (users[:, 0] != users[:, 1]).all()
    x = onerec.rows(ids[1], users, seen).numpy()
    assert x.shape == (50, 53)
    codes = ids[1].codes
    for row, user, items in zip(x, users, seen):
        liked = [item for item in items[:16] if item // 64 == user[0]][-4:]
        places = [codes[item] for item in liked]
        empty = [[16] * 3] * (4 - len(liked))
        said = [codes[item] for item in [*items[:8], *items[12:17]]]
        wanted = np.concatenate([user, *said[:8], *empty, *places, *said[8:]])
        assert (row == wanted).all()
    # A record is the same whatever is made with it.
    again = onerec.records([[1, 0, 7]])
    assert (again[0][0] == users[7]).all() and (again[1][0] == seen[7]).all()


def test_the_entropy_of_the_world_is_known() -> None:
    users = np.array([[0, 1]] * 3)
    last = np.array([5, 64 + 5, 128 + 5])
    p = onerec.next_item(users, last)
    assert np.allclose(p.sum(1), 1, atol=1e-12)
    wanted = [3.1134877495679802, 3.1839784983915447, 3.258766675531973]
    assert np.abs(onerec.entropy(p) - wanted).max() <= 1e-12
    assert abs(onerec.entropy(onerec.ZIPF) - 2.358932519358828) <= 1e-12


def test_records_are_drawn_by_the_rule_that_the_floor_is_of() -> None:
    # 200,000 pairs of one item and the next.
    users, seen = onerec.records([[1, 0, sample] for sample in range(12_500)])
    apart = []
    for event in range(1, onerec.EVENTS):
        p = onerec.next_item(users, seen[:, event - 1])
        surprise = -np.log(p[np.arange(len(p)), seen[:, event]])
        apart.append(surprise - onerec.entropy(p))
    apart = np.concatenate(apart)
    assert len(apart) == 200_000
    assert abs(apart.mean()) <= 3 * apart.std() / np.sqrt(len(apart))


def test_the_model_has_the_size_of_the_specification() -> None:
    model = onerec.Recommender(32, 4, 2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 107_232


def test_the_recommender_learns(recommender: Example) -> None:
    found = recommender.alone("--json", "--steps", "100")
    assert found["validation"] < 6.2
    assert found["load_last"] < found["load_first"]


def test_a_recommender_of_four_workers_has_the_bits_of_one_process(
    recommender: Example, tmp_path: Path
) -> None:
    told = ["--json", "--steps", "16", "--width", "8"]
    found = recommender.run(tmp_path, *told, late=3, killed=1)
    assert found.lines == [recommender.alone(*told)] * 4
    counts = found.counts(2 * 4)
    assert counts.shape == (16, 8) and (counts == counts.round()).all()
    assert (counts.sum(1) == 3 * 2 * 2 * 64).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
def test_the_recommender_ends_near_the_floor(seed: int, recommender: Example) -> None:
    balanced = recommender.alone("--json", "--seed", str(seed))
    frozen = recommender.alone("--json", "--seed", str(seed), "--bias-rate", "0")
    assert -0.05 <= balanced["gap"] <= 0.65
    assert balanced["load_last"] <= 1.3
    assert frozen["load_last"] > balanced["load_last"]


@pytest.mark.slow
def test_wider_recommenders_are_better(recommender: Example) -> None:
    losses = [
        recommender.alone("--json", "--width", str(width))["validation"] for width in (8, 16, 32)
    ]
    assert losses[0] - losses[1] >= 0.1 and losses[1] - losses[2] >= 0.1, losses
