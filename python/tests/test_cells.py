"""Workers of several ranks: bits of one process, and every trouble that one rank may have."""

from __future__ import annotations

import json
import random
import re
import signal
from pathlib import Path
from typing import Any, Dict, List

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("one_thread")]
torch = pytest.importorskip("torch")

import codedgrad.torch as coded  # noqa: E402
import fake_device  # noqa: E402
import ranks  # noqa: E402
from codedgrad._core.joining import Settings  # noqa: E402
from codedgrad._torch.host import digest  # noqa: E402
from codedgrad.loop import unit_seed  # noqa: E402
from ranks import LIMIT_SECONDS, STEPS, UNIT_SAMPLES, UNITS, Cells, prepared, train  # noqa: E402
from runs import tree_sum  # noqa: E402
from test_launch import Launched, script  # noqa: E402


def all_results(cells: Cells) -> List[Dict[str, Any]]:
    return [each for k in range(cells.workers) for each in cells.results(str(k))]


def one_digest(results: List[Dict[str, Any]]) -> int:
    digests = {each["digest"] for each in results}
    assert len(digests) == 1, results
    return int(digests.pop())


@pytest.mark.parametrize(
    "scheme, workers, shape, reduction",
    [
        ("uncoded", 2, (2,), "mean"),
        ("groups:s=1", 2, (2,), "tokens"),
        ("uncoded", 1, (4,), "sum"),
        ("uncoded", 1, (2, 2), "mean"),
    ],
)
def test_it_is_the_run_of_one_process(
    scheme: str, workers: int, shape: Any, reduction: str, tmp_path: Path
) -> None:
    alone = train({}, {"reduction": reduction})
    with Cells(tmp_path, scheme, workers, *shape, reduction=reduction) as cells:
        found = all_results(cells)
    assert one_digest(found) == alone["digest"]
    for each in found:
        assert each["complete"] and each["rate"] == alone["rate"]
        # Counts are means over the ranks where losses are.
        wanted = alone["totals"]
        if reduction == "mean":
            size = UNIT_SAMPLES * UNITS / cells.ranks
            wanted = [[loss, size] for loss, _ in wanted]
        assert each["totals"] == wanted
    assert [each["savers"] for each in found] == [STEPS] + [0] * (len(found) - 1)


@pytest.mark.parametrize(
    "scheme, shape, plan",
    [
        ("uncoded", (2,), {}),
        ("groups:s=1", (2,), {"trouble": "late", "worker": 1}),
        ("groups:s=1", (2,), {"trouble": "nan", "worker": 1, "rank": 1}),
        ("groups:s=1", (2,), {"device": "fake"}),
    ],
)
def test_scripts_as_they_were_have_the_bits_of_one_process(
    scheme: str, shape: Any, plan: Any, tmp_path: Path
) -> None:
    if plan.get("device") == "fake":
        why = fake_device.unavailable()
        if why is not None:
            pytest.skip(why)
        fake_device.build()
    alone = prepared({}, {})
    with Cells(tmp_path, scheme, 2, *shape, prepared=True, **plan) as cells:
        found = all_results(cells)
    assert one_digest(found) == alone["digest"]
    for each in found:
        assert each["complete"] and each["rate"] == alone["rate"]
        assert each["totals"] == alone["totals"]


def test_it_is_the_run_of_one_process_on_an_accelerator(tmp_path: Path) -> None:
    why = fake_device.unavailable()
    if why is not None:
        pytest.skip(why)
    fake_device.build()
    with Cells(tmp_path, "groups:s=1", 2, 2, device="fake") as cells:
        assert one_digest(all_results(cells)) == train({}, {})["digest"]


def reference() -> int:
    """Two ranks' parts of each unit in plain PyTorch, added, and units added by the tree."""
    model: Any = ranks.Usual()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2**-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 4))
    x, y = ranks.dataset().tensors
    batches = len(x) // (UNITS * UNIT_SAMPLES)
    for step in range(STEPS):
        epoch, place = divmod(step, batches)
        generator = torch.Generator().manual_seed(unit_seed(0, epoch, 0, "epoch"))
        order = torch.randperm(len(x), generator=generator)
        units: List[List[Any]] = []
        for unit in range(UNITS):
            parts = []
            for rank in range(2):
                start = (place * UNITS + unit) * UNIT_SAMPLES + rank * UNIT_SAMPLES // 2
                samples = order[start : start + UNIT_SAMPLES // 2]
                micro = ranks_micro(step, unit, rank)
                model.zero_grad()
                torch.manual_seed(unit_seed(0, step, unit, "unit", rank))
                model.loss(micro, x[samples], y[samples]).backward()
                parts.append([each.grad.clone() for each in model.parameters()])
            units.append([(a + b) / 2 for a, b in zip(*parts)])
        for index, parameter in enumerate(model.parameters()):
            parameter.grad = tree_sum([unit[index] for unit in units]) / UNITS
        optimizer.step()
        schedule.step()
    return digest(list(model.parameters()))


def ranks_micro(step: int, unit: int, rank: int) -> Any:
    settings = Settings(units=UNITS, steps=STEPS, unit_samples=UNIT_SAMPLES, part=rank)
    return coded.Micro(settings, step, step, (unit, 0, 0, 1.0))


def test_random_numbers_are_by_unit_and_rank(tmp_path: Path) -> None:
    with Cells(tmp_path, "groups:s=1", 2, 2, model="usual") as cells:
        assert one_digest(all_results(cells)) == reference()


def test_the_first_rank_draws_what_one_process_draws() -> None:
    assert unit_seed(5, 1, 2, "unit", 0) == unit_seed(5, 1, 2)
    assert len({unit_seed(5, 1, 2, "unit", rank) for rank in range(4)}) == 4


def test_a_worker_whose_rank_is_late_is_not_waited_for(tmp_path: Path) -> None:
    alone = train({}, {"steps": 12})
    told = {"trouble": "late", "worker": 1, "rank": 1, "steps": 12}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        found = all_results(cells)
    assert one_digest(found) == alone["digest"]
    units = [each["report"]["units"] for each in found]
    assert units[0] == units[1] > units[2] == units[3], units
    # All ranks know of the late workers, of whom the first one alone is told.
    assert {each["metrics"]["coded/late_workers"] for each in found[:2]} == {1.0}


def test_a_rank_that_is_killed_is_its_worker_and_that_comes_back(tmp_path: Path) -> None:
    steps = 40
    alone = train({}, {"steps": steps})
    told = {"steps": steps, "pause": 0.03, "trouble": "killed", "worker": 1, "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told, serve={"log_steps": 2}) as cells:
        statuses = cells.statuses("1")
        assert statuses == [1, -signal.SIGKILL], cells.said()
        assert "rank 1 of this worker has died" in cells.said()["1-0"]
        cells.start(1, "again", trouble=None)
        found = cells.results("0") + cells.results("again")
    assert one_digest(found) == alone["digest"]
    assert [each["report"]["resyncs"] for each in found[:2]] == [0, 0]
    assert found[2]["report"]["resyncs"] == found[3]["report"]["resyncs"] >= 1
    assert all(each["report"]["seconds"]["state"] > 0 for each in found[2:])
    assert {each["rate"] for each in found} == {alone["rate"]}


def test_nan_in_one_rank_is_its_workers_and_does_not_count(tmp_path: Path) -> None:
    told = {"trouble": "nan", "worker": 1, "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        found = all_results(cells)
    assert one_digest(found) == train({}, {})["digest"]


def test_a_step_that_is_refused_is_refused_on_all_ranks(tmp_path: Path) -> None:
    with Cells(tmp_path, "uncoded", 2, 2, trouble="nan", worker=1, rank=1) as cells:
        found = all_results(cells)
    one_digest(found)
    refused = [[step for step, units in enumerate(each["skipped"]) if units] for each in found]
    assert refused == [[2]] * 4
    assert {each["report"]["skipped"] for each in found} == {1}


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("notice", [0, 20])
def test_sigterm_of_one_rank_makes_all_leave(notice: int, rank: int, tmp_path: Path) -> None:
    told = {"trouble": "told", "worker": 1, "rank": rank, "notice": notice}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        assert cells.statuses("1") == [0, 0], cells.said()
        found = cells.results("0")
        said = cells.said()
    assert one_digest(found) == train({}, {})["digest"]
    within = "" if notice == 0 else f", within {notice} s"
    words = f"codedgrad: worker 1 leaves the run{within}: rank {rank} was told to end (SIGTERM)\n"
    assert (said["1-0"].count(words), said["1-1"].count(words)) == (1, 0), said


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("trouble", ["raises", "body", "ctrl-c"])
def test_an_exception_in_one_rank_is_the_workers(
    trouble: str, rank: int, tmp_path: Path
) -> None:
    # Whoever computes at all soon fails.
    told = {"trouble": trouble, "worker": 1, "rank": rank, "pause": 0.02}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        assert cells.statuses("1") == [1, 1], cells.said()
        found = cells.results("0")
        said = cells.said()
    assert one_digest(found) == train({}, {})["digest"]
    words = {
        "raises": "ZeroDivisionError: sample 17",
        "body": "ZeroDivisionError: in the body",
        "ctrl-c": "KeyboardInterrupt",
    }[trouble]
    assert said[f"1-{rank}"].endswith(f"{words}\n")
    last = f"RuntimeError: rank {rank} of this worker has left the run: {words}\n"
    assert said[f"1-{1 - rank}"].endswith(last), said


def test_replicas_that_drift_apart_are_named(tmp_path: Path) -> None:
    told = {"trouble": "other step", "worker": 1, "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        assert cells.statuses("1") == [1, 1]
        one_digest(cells.results("0"))
        said = cells.said()
    for rank in (0, 1):
        assert "rank 1 of this worker has other parameters than rank 0" in said[f"1-{rank}"]


def test_a_rank_that_leaves_alone_is_an_error(tmp_path: Path) -> None:
    told = {"trouble": "break", "worker": 1, "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        assert cells.statuses("1") == [1, 0]
        one_digest(cells.results("0"))
        said = cells.said()
    assert "rank 1 of this worker has left the run: its loop over the run was left" in said["1-0"]


def test_all_ranks_may_leave(tmp_path: Path) -> None:
    told = {"trouble": "break", "worker": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        assert one_digest(cells.results("1")) and not cells.results("1")[0]["complete"]
        assert one_digest(cells.results("0")) == train({}, {})["digest"]


@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_may_finish_the_run(rank: int, tmp_path: Path) -> None:
    with Cells(tmp_path, "uncoded", 2, 2, trouble="finish", worker=0, rank=rank) as cells:
        found = all_results(cells)
    one_digest(found)
    assert all(each["over"] and not each["complete"] for each in found)


def test_a_unit_without_a_loss_in_one_rank(tmp_path: Path) -> None:
    told = {"trouble": "nothing", "rank": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, **told) as cells:
        one_digest(all_results(cells))


@pytest.mark.parametrize(
    "told, words",
    [
        (
            {"trouble": "other start", "rank": 1},
            "rank 1 of this worker begins with other parameters or buffers than rank 0",
        ),
        ({"join": {"data": "c"}}, "data names 'c', and the dimensions of mesh= are ['a', 'b']"),
        ({"join": {"overlap": True}}, "overlap=True with mesh="),
        ({"join": {"scheme": "graph"}}, "scheme: graph here, uncoded in the run"),
    ],
)
def test_what_cannot_be_joined_is_refused_on_all_ranks(
    told: Dict[str, Any], words: str, tmp_path: Path
) -> None:
    with Cells(tmp_path, "uncoded", 1, 2, 2, **told) as cells:
        assert cells.statuses("0") == [1] * 4
        for said in cells.said().values():
            assert words in said.splitlines()[-1], said


def test_what_is_no_mesh_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(TypeError, match="mesh= needs torch.distributed"):
        coded.join(model, optimizer, units=1, steps=1, mesh=2)


def sharded(model: Any, mesh: Any, how: str) -> Any:
    """A model whose parameters are cut over ranks, or summed over them, by PyTorch."""
    from torch.distributed import fsdp
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    if how == "fully_shard":
        if not hasattr(fsdp, "fully_shard"):
            pytest.skip("FSDP2 came with PyTorch 2.6")
        return fsdp.fully_shard(model, mesh=mesh)
    if how == "FullyShardedDataParallel":
        return fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    if how == "DTensor":
        return parallelize_module(model, mesh, ColwiseParallel())
    return torch.nn.parallel.DistributedDataParallel(model)


@pytest.mark.parametrize(
    "how, with_mesh, words",
    [
        ("fully_shard", False, r"weight is cut over the ranks \[0\]: give join mesh="),
        ("FullyShardedDataParallel", False, r"sharded by FSDP1 .*: shard it by FSDP2"),
        ("FullyShardedDataParallel", True, r"sharded by FSDP1 .*: shard it by FSDP2"),
        ("DTensor", False, r"weight is cut over the ranks \[0\]: give join mesh="),
        ("DistributedDataParallel", False, r"wrapped in Distributed.*join\(mesh=\) sums them"),
        ("DistributedDataParallel", True, r"wrapped in Distributed.*join\(mesh=\) sums them"),
    ],
)
def test_what_is_summed_by_others_is_refused_by_name(
    how: str, with_mesh: bool, words: str, tmp_path: Path
) -> None:
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = ranks.init_device_mesh("cpu", (1,))
        model = sharded(torch.nn.Linear(2, 2), mesh, how)
        with pytest.raises(TypeError, match=words):
            coded.join(model, None, units=1, steps=1, mesh=mesh if with_mesh else None)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("launch", range(10))
def test_ten_troubles_one_after_the_other_hang_nobody(launch: int, tmp_path: Path) -> None:
    generator = random.Random(launch)
    told = {"steps": 100_000, "pause": 0.005, "worker": 1}
    scheme, size = ("groups:s=1", "uncoded")[launch % 2], 4 if launch > 7 else 2
    # Without a code the run stands while its worker is away, and a unit may be given up ten times.
    serve = {"log_steps": 2, "return_within": LIMIT_SECONDS, "unit_tries": 20}
    with Cells(tmp_path, scheme, 2, size, **told, serve=serve) as cells:
        cells.stop(1)
        for life in range(10):
            trouble = generator.choice(["killed", "raises", "body", "other step", "ctrl-c later"])
            more = {"trouble": trouble, "rank": generator.randrange(size)}
            more["after"] = generator.random() / 10
            cells.start(1, f"life {life}", at=generator.randrange(6), **more)
            assert all(cells.statuses(f"life {life}")), (more, cells.said())
        cells.start(1, "last", trouble="finish", at=3)
        one_digest(cells.results("0") + cells.results("last"))


SCRIPT = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch.distributed as dist
import ranks

plan = json.loads(sys.argv[1])
if os.environ["CODEDGRAD_EPOCH"] != "0":
    del plan["trouble"]
dist.init_process_group("gloo")
mesh = ranks.init_device_mesh("cpu", (dist.get_world_size(),))
where = {{"worker": int(os.environ["CODEDGRAD_WORKER"])}}
found = ranks.done(where, plan, dist.get_rank(), mesh)
# In one piece: ranks write to one pipe.
sys.stdout.write("digest %s\\n" % found["digest"])
sys.stdout.flush()
# Who is left behind is now and then aborted by torch.
dist.barrier()
dist.destroy_process_group()
"""


def launched(folder: Path, scheme: str, **plan: Any) -> Launched:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    told = [*torchrun, script(folder, SCRIPT), json.dumps({"worker": 1, "rank": 1, **plan})]
    return Launched(folder, "-n", "2", "--scheme", scheme, "--kill-after", "40", *told)


@pytest.mark.slow
def test_torchrun_and_the_launcher_start_a_worker_again(tmp_path: Path) -> None:
    with launched(tmp_path, "uncoded", trouble="killed") as run:
        assert run.ends() == 0, run.said()
    said = run.said()
    assert re.findall(r"digest (\d+)", said) == [str(train({}, {})["digest"])] * 4, said
    assert said.count("started again in") == 1, said
    assert "worker 1 ended with status 1: started again in" in said, said


def test_the_coordinator_hears_of_the_rank_and_its_samples(tmp_path: Path) -> None:
    with launched(tmp_path, "uncoded", trouble="raises") as run:
        assert run.ends() == 0, run.said()
    said = run.said()
    assert re.findall(r"digest (\d+)", said) == [str(train({}, {})["digest"])] * 4, said
    words = "unit 2 of batch 2 (samples 20 to 23): rank 1: ZeroDivisionError: sample 17"
    assert words in said, said


@pytest.mark.slow
def test_a_worker_of_ranks_that_differ_is_not_started_again(tmp_path: Path) -> None:
    with launched(tmp_path, "uncoded", trouble="other start") as run:
        assert run.ends() == 1, run.said()
    assert "begins with other parameters or buffers than rank 0" in run.said()
    assert "started again in" not in run.said(), run.said()


@pytest.mark.slow
def test_a_rank_that_is_told_to_end_ends_its_worker_for_good(tmp_path: Path) -> None:
    with launched(tmp_path, "groups:s=1", trouble="told") as run:
        assert run.ends() == 0, run.said()
    assert re.findall(r"digest (\d+)", run.said()) == [str(train({}, {})["digest"])] * 2
    assert "started again in" not in run.said(), run.said()
