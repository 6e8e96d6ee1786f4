"""Workers whose ranks shard the model by FSDP2: the bits of one worker, and every trouble."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
torch = pytest.importorskip("torch")

import codedgrad.torch as coded  # noqa: E402
import sharded  # noqa: E402
from ranks import LIMIT_SECONDS, Cells  # noqa: E402
from test_cells import launched  # noqa: E402
from test_ddp import EXAMPLES, SMALL, changed, hashes, under_ddp  # noqa: E402
from test_launch import Launched  # noqa: E402

# What changes who computes what, and not what comes of it.
ABOUT_TROUBLE = ("trouble", "worker", "rank", "at", "pause", "serve", "tells")


@lru_cache(maxsize=None)
def _alone(plan: str) -> Dict[str, Any]:
    """What one worker of two ranks has come to without a coordinator."""
    with tempfile.TemporaryDirectory() as folder:
        with Cells(Path(folder), "", 1, 2, sharded=True, **json.loads(plan)) as cells:
            found = cells.results("0")
    assert found[0]["digest"] == found[1]["digest"], "ranks differ"
    return found[0]


def alone(plan: Dict[str, Any]) -> Dict[str, Any]:
    told = {name: value for name, value in plan.items() if name not in ABOUT_TROUBLE}
    return _alone(json.dumps(told, sort_keys=True))


def results(cells: Cells, *names: str) -> List[Dict[str, Any]]:
    return [each for name in names for each in cells.results(name)]


def digests(found: List[Dict[str, Any]]) -> List[str]:
    return sorted({each["digest"] for each in found})


@pytest.mark.parametrize(
    "scheme, plan",
    [
        ("uncoded", {}),
        pytest.param("groups:s=1", {}, marks=pytest.mark.slow),
        pytest.param("groups:s=1", {"trouble": "late", "worker": 1}, marks=pytest.mark.slow),
        ("groups:s=1", {"trouble": "late", "worker": 1, "rank": 1}),
        ("uncoded", {"reduction": "tokens"}),
        ("groups:s=1", {"reduction": "sum", "trouble": "late", "worker": 1}),
        pytest.param("queue:m=2", {}, marks=pytest.mark.slow),
        ("groups:s=1", {"uneven": True}),
        pytest.param("groups:s=1", {"tied": True}, marks=pytest.mark.slow),
        ("groups:s=1", {"frozen": True}),
        ("groups:s=1", {"bf16": True}),
        pytest.param("groups:s=1", {"mixed": "float32"}, marks=pytest.mark.slow),
        ("groups:s=1", {"mixed": "bfloat16", "reduction": "tokens"}),
        pytest.param("groups:s=1", {"reshard": False}, marks=pytest.mark.slow),
        pytest.param("groups:s=1", {"reshard": 2}, marks=pytest.mark.slow),
        ("groups:s=1", {"checkpoint": True, "dropout": 0.2}),
        pytest.param("groups:s=1", {"compile": True}, marks=pytest.mark.slow),
        pytest.param("groups:s=1", {"meta": "to_empty"}, marks=pytest.mark.slow),
        ("uncoded", {"meta": "assigned"}),
        ("groups:s=1", {"clip": "torch", "digests": True}),
        pytest.param(
            "groups:s=1", {"clip": "coded", "trouble": "late", "worker": 1}, marks=pytest.mark.slow
        ),
        pytest.param("groups:s=1", {"nothing": True}, marks=pytest.mark.slow),
        ("groups:s=1", {"plain head": True, "dropout": 0.2}),
        # PyTorch's own function raises for parameters of two meshes.
        ("uncoded", {"clip": "coded", "meshes": 2}),
    ],
)
def test_it_has_the_bits_of_one_worker(scheme: str, plan: Dict[str, Any], tmp_path: Path) -> None:
    with Cells(tmp_path, scheme, 2, 2, sharded=True, **plan) as cells:
        found = results(cells, "0", "1")
    reference = alone(plan)
    assert digests(found) == [reference["digest"]]
    for each in found:
        assert each["complete"]
        for name in ("rate", "totals", "norms", "digests"):
            assert each[name] == reference[name], name
    if plan.get("trouble") == "late":
        units = [each["report"]["units"] for each in found]
        assert units[0] == units[1] > units[2] == units[3], units


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"reduction": "tokens"},
        {"uneven": True},
        pytest.param({"tied": True, "frozen": True}, marks=pytest.mark.slow),
        pytest.param({"mixed": "float32"}, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_training_of_one_process(plan: Dict[str, Any], tmp_path: Path) -> None:
    """Two workers that are wrong alike have the same bits: so plain PyTorch with the whole batch
    says what is right, by an optimizer that shows the gradient's scale."""
    plan = {**plan, "optimizer": "SGD", "rate": 0.3, "clip": "torch", "max_norm": 1e9}
    with Cells(tmp_path, "uncoded", 2, 2, sharded=True, **plan) as cells:
        found = results(cells, "0", "1")
    reference, norms = sharded.of_one_process(plan)
    tokens = plan.get("reduction") == "tokens"
    scale = 1 if tokens else sharded.UNITS
    ours = [total[0] / scale for total in found[0]["totals"]]
    wide = 2e-2 if "mixed" in plan else 2e-6
    assert ours == pytest.approx(reference, rel=wide)
    assert found[0]["norms"] == pytest.approx(norms, rel=wide)
    assert reference[-1] < 0.9 * reference[0], "it does not learn"


@pytest.mark.parametrize("plan", [{}, {"trouble": "late", "worker": 1}])
def test_scripts_as_they_were_have_the_bits_of_one_worker(
    plan: Dict[str, Any], tmp_path: Path
) -> None:
    """Also where skipped iterations meet shapes that one rank alone has not computed: a forward pass
    is a collective, which all ranks enter or none."""
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, prepared=True, **plan) as cells:
        found = results(cells, "0", "1")
    reference = alone({"prepared": True})
    assert digests(found) == [reference["digest"]]
    assert all(each["complete"] for each in found)
    if plan:
        assert found[2]["work"]["units"] < found[0]["work"]["units"]


EARLY = {"join": {"overlap": True}, "early": 64}


@pytest.mark.parametrize(
    "scheme, plan",
    [
        ("uncoded", {}),
        ("uncoded", {"uneven": True, "clip": "coded"}),
        ("groups:s=1", {"trouble": "late", "worker": 1}),
        pytest.param("groups:s=1", {"bf16": True, "reshard": False}, marks=pytest.mark.slow),
        pytest.param("uncoded", {"tied": True, "frozen": True}, marks=pytest.mark.slow),
    ],
)
def test_behind_the_backward_pass_it_has_the_same_bits(
    scheme: str, plan: Dict[str, Any], tmp_path: Path
) -> None:
    with Cells(tmp_path, scheme, 2, 2, sharded=True, **plan, **EARLY) as cells:
        found = results(cells, "0", "1")
    assert digests(found) == [alone(plan)["digest"]]
    if scheme == "uncoded":
        # The first ranks have told it of the other's parts too.
        first = [found[0]["early"], found[2]["early"]]
        assert all(each > 0 for each in first), first


def test_the_ranks_agree_once_for_a_unit(tmp_path: Path) -> None:
    with Cells(tmp_path, "uncoded", 2, 2, sharded=True) as cells:
        first, second = cells.results("0")
        results(cells, "1")
    assert first["agreements"] == second["agreements"]
    # Once for each of two units; then the task and its fate. Of a step:
    # two events, the task's units, that the gradient is there, and the digest. While the first
    # rank waits for an event the others are asked five times a second whether they were told to end.
    counts = first["agreements"][1:-1]
    assert min(counts) <= 2 * 1 + 2 + 5, counts


def test_micro_batches_of_a_task_leave_their_worker_as_one_gradient(tmp_path: Path) -> None:
    with Cells(tmp_path, "uncoded", 2, 2, sharded=True) as cells:
        first, second = cells.results("0")
        results(cells, "1")
    assert first["report"]["units"] == 2 * sharded.STEPS
    gradients = 4 * sharded.STEPS * first["length"]
    assert gradients <= first["traffic"][0] < 1.5 * gradients
    assert second["traffic"] == [0, 0]


def test_nothing_is_left_open(tmp_path: Path) -> None:
    with Cells(tmp_path, "uncoded", 2, 2, sharded=True) as cells:
        assert [each["left_open"] for each in results(cells, "0", "1")] == [[]] * 4


def test_both_ways_to_clip_scale_alike() -> None:
    norms = [alone({"clip": how})["norms"] for how in ("torch", "coded")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert all(norm > 0.3 for norm in norms[0]), "nothing is clipped"


def test_a_process_without_fsdp_imports_nothing_of_it() -> None:
    # An optimizer's first step imports both by itself, in some versions.
    code = """if True:
        import sys, torch, codedgrad.torch as coded
        model = torch.nn.Linear(2, 2)
        for step in coded.join(model, units=1, steps=2):
            for _ in step:
                model(torch.ones(1, 2)).sum().backward()
        names = ("torch.distributed.tensor", "torch.distributed.fsdp")
        print([name for name in names if name in sys.modules])
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]", found.stdout


def test_each_number_is_sent_once(tmp_path: Path) -> None:
    for plan in ({}, {"uneven": True}, {"tied": True}):
        length = coded.length(sharded.Net(plan))
        assert alone(plan)["length"] == length


@pytest.mark.parametrize("when", ["before join", "before the optimizer", "after the optimizer"])
def test_an_evaluation_leaves_no_old_parameters_behind(when: str, tmp_path: Path) -> None:
    """FSDP2 leaves parameters whole after a forward pass without a backward pass. Here the optimizer's
    step may come next, on a decoded gradient, and micro-batches after it."""
    plan = {"steps": 8, "evaluates": when, "trouble": "turns"}
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, **plan) as cells:
        found = results(cells, "0", "1")
    assert digests(found) == [alone({"steps": 8})["digest"]]
    units = [each["report"]["units"] for each in found]
    assert all(0 < each < 8 * sharded.UNITS for each in units), units


def test_parameters_that_some_ranks_keep_are_put_back(tmp_path: Path) -> None:
    """With `reshard_after_forward=2` of four ranks pairs keep all of the parameters."""
    found = []
    for name, evaluates in (("calm", None), ("evaluates", "after the optimizer")):
        folder = tmp_path / name
        folder.mkdir()
        plan = {"reshard": 2, "evaluates": evaluates}
        with Cells(folder, "", 1, 4, sharded=True, **plan) as cells:
            found += results(cells, "0")
    assert len(digests(found)) == 1


IN_PLACES = ["killed in forward", "killed between units", "killed after the step"]
OTHERS = [
    ("killed in backward", 0),
    ("killed in submit", 0),
    ("killed before the optimizer", 1),
    ("raises", 1),
    *((each, rank) for each in IN_PLACES for rank in (0, 1)),
]


def come_back(
    tmp_path: Path, plan: Dict[str, Any]
) -> Tuple[List[Dict[str, Any]], Dict[str, str]]:
    """What the ranks of worker 0, and of worker 1 that has ended and comes back, have come to, and
    what all of them have said."""
    ended, kept = tmp_path / "ended", {"log_steps": 2}
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, **plan, serve=kept) as cells:
        cells.start(1, "again", trouble=None, waits_for=str(ended))
        assert all(cells.statuses("1")), cells.said()
        time.sleep(1.0)
        ended.touch()
        return results(cells, "0", "again"), cells.said()


@pytest.mark.parametrize(
    "trouble, rank",
    [
        ("killed in backward", 1),
        ("killed in submit", 1),
        ("killed before the optimizer", 0),
        ("raises", 0),
        *(pytest.param(each, rank, marks=pytest.mark.slow) for each, rank in OTHERS),
    ],
)
def test_a_worker_comes_back_with_its_ranks_states(trouble: str, rank: int, tmp_path: Path) -> None:
    # Steps enough that the others are further on than what is kept of the last ones.
    told = {"steps": 40, "pause": 0.03}
    plan = {**told, "trouble": trouble, "worker": 1, "rank": rank}
    found, said = come_back(tmp_path, plan)
    assert digests(found) == [alone(told)["digest"]]
    resyncs = [each["report"]["resyncs"] for each in found]
    assert resyncs[:2] == [0, 0] and resyncs[2] == resyncs[3] >= 1, (resyncs, said)
    if trouble == "raises":
        assert said[f"1-{rank}"].endswith("ZeroDivisionError: sample 17\n"), said


def test_a_state_is_handed_over_while_parameters_are_in_use(tmp_path: Path) -> None:
    """The worker that has it evaluates in each step, which leaves FSDP2's parameters whole, as they
    were before the optimizer's step, and trains on; the other one comes back while it does."""
    told = {"steps": 40, "pause": 0.03, "evaluates": "before the optimizer"}
    trouble = {"trouble": "killed between units", "worker": 1, "rank": 0}
    found, _ = come_back(tmp_path, {**told, **trouble})
    # An evaluation changes nothing.
    assert digests(found) == [alone({"steps": 40})["digest"]]
    resyncs = [each["report"]["resyncs"] for each in found]
    assert resyncs[:2] == [0, 0] and resyncs[2] == resyncs[3] >= 1, resyncs


def test_frozen_shards_under_a_whole_head_come_from_the_same_rank(tmp_path: Path) -> None:
    told = {"steps": 40, "pause": 0.03, "plain head": True}
    trouble = {"trouble": "killed before the optimizer", "worker": 1, "rank": 1}
    found, _ = come_back(tmp_path, {**told, **trouble})
    assert digests(found) == [alone(told)["digest"]]
    assert found[2]["report"]["resyncs"] >= 1


def test_a_rank_that_is_stopped_is_a_late_worker(tmp_path: Path) -> None:
    plan = {"trouble": "stopped", "worker": 1, "rank": 1, "tells": str(tmp_path / "last")}
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, **plan) as cells:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not Path(plan["tells"]).exists():
            assert time.monotonic() < deadline, cells.said()
            time.sleep(0.02)
        # At the run's end a worker that is there is waited for.
        cells.stop(1)
        assert digests(results(cells, "0")) == [alone({})["digest"]]


@pytest.mark.parametrize("trouble", ["nan", "nan in a shard"])
def test_what_is_not_finite_in_one_rank_is_the_workers(trouble: str, tmp_path: Path) -> None:
    plan = {"trouble": trouble, "worker": 1, "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, **plan) as cells:
        assert digests(results(cells, "0", "1")) == [alone({})["digest"]]


def test_what_is_not_finite_at_all_holders_is_refused_alike(tmp_path: Path) -> None:
    plan = {"trouble": "nan in a shard", "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, **plan) as cells:
        found = results(cells, "0", "1")
    assert len(digests(found)) == 1
    assert [each["skipped"] for each in found] == [[step == 2 for step in range(6)]] * 4


@pytest.mark.parametrize("rank", [0, 1])
def test_sigterm_of_one_rank_makes_the_worker_leave(rank: int, tmp_path: Path) -> None:
    plan = {"trouble": "told", "worker": 1, "rank": rank}
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True, **plan) as cells:
        assert cells.statuses("1") == [0, 0], cells.said()
        assert digests(results(cells, "0")) == [alone({})["digest"]]


def test_checkpoints_of_all_ranks_are_resumed_from(tmp_path: Path) -> None:
    plan: Dict[str, Any] = {"checkpoints": str(tmp_path / "checkpoint")}
    for more in ({"saves": 3}, {"first": 3, "serve": {"first": 3}}):
        folder = tmp_path / f"from {more.get('first', 0)}"
        folder.mkdir()
        with Cells(folder, "groups:s=1", 2, 2, sharded=True, **plan, **more) as cells:
            found = results(cells, "0", "1")
        assert digests(found) == [alone({})["digest"]]
        if "saves" in more:
            assert [each["saved"] for each in found] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "shape, plan, words",
    [
        (
            [2],
            {"factor": 3.0},
            "set_gradient_divide_factor(3) is set where embed.weight is, and "
            'reduction="mean" needs 2 here: leave it out',
        ),
        (
            [2],
            {"join": {"overlap": True}, "plain head": True},
            "overlap=True with mesh=, where fully_shard does not have all parameters",
        ),
        ([2], {"offload": True}, "embed.weight is sharded with CPUOffloadPolicy, which is not"),
        ([2], {"names": ["cp"]}, "context parallelism is not supported yet. Shard the model by"),
        ([2], {"names": ["pp"]}, "pipeline parallelism is not supported yet. Shard the model by"),
        ([4], {"within": True}, "which are a part of the dimension 'a' of mesh=: give join the"),
        ([2, 1], {}, "embed.weight is sharded over one rank, where the FSDP2 of PyTorch 2.10"),
    ],
)
def test_what_would_be_summed_wrongly_is_refused(
    shape: List[int], plan: Dict[str, Any], words: str, tmp_path: Path
) -> None:
    with Cells(tmp_path, "", 1, *shape, sharded=True, **plan) as cells:
        assert set(cells.statuses("0")) == {1}
        # A rank that is refused at once may be gone while another one still connects to it.
        last = [said.splitlines()[-1] for said in cells.said().values()]
        assert any(words in said for said in last), last


def test_a_part_of_a_pipeline_is_refused_by_name() -> None:
    class Stage:
        pass

    Stage.__module__ = "torch.distributed.pipelining.stage"
    with pytest.raises(TypeError, match="Stage, a part of a pipeline: .* fully_shard"):
        coded.join(Stage(), units=1, steps=1)  # type: ignore[arg-type]


def test_workers_of_different_numbers_of_ranks_are_refused_by_both(tmp_path: Path) -> None:
    with Cells(tmp_path, "groups:s=1", 2, 2, sharded=True) as cells:
        cells.stop(1)
        cells.ranks, cells.shape = 4, [4]
        cells.start(1, "four")
        assert all(cells.statuses("four"))
        said = cells.said()["four-0"].splitlines()[-1]
    assert said.endswith("differ in ranks of a worker (2 and 4)"), said


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_coded_script_has_the_bits_of_hsdp(accumulate: int, tmp_path: Path) -> None:
    plain, twin = EXAMPLES / "hsdp_plain.py", EXAMPLES / "hsdp_coded.py"
    lines = changed(*(path.read_text().split("for epoch")[1] for path in (plain, twin)))
    assert [each.strip("+- ") for each in lines] == [
        "sampler.set_epoch(epoch)",
        "if dist.get_rank() == 0:",
        "if model.run.saver and dist.get_rank() == 0:",
    ]
    flags = [*SMALL, "--epochs", "1", "--accumulate", str(accumulate)]
    ranks = under_ddp(plain, 4, "--nodes", "2", *flags)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-n", "2", "--scheme", "uncoded", *torchrun, str(twin), *flags]
    with Launched(tmp_path, *command) as run:
        assert run.ends() == 0, run.said()
    logs = [(run.folder / f"worker-{k}.log").read_text() for k in range(2)]
    found = [each for log in logs for each in re.findall(r"sha256 ([0-9a-f]{64})", log)]
    assert len(found) == 4 and set(found) == set(hashes(ranks))


def test_the_coordinator_hears_of_rank_micro_batch_and_samples(tmp_path: Path) -> None:
    with launched(tmp_path, "uncoded", sharded=True, trouble="raises") as run:
        assert run.ends() == 0, run.said()
    said = run.said()
    assert set(re.findall(r"digest (\w+)", said)) == {alone({})["digest"]}, said
    words = r"unit 2 of batch 2 \(samples 20 to 23\): rank 1: ZeroDivisionError: sample 17"
    assert re.search(words, said), said
