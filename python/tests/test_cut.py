"""A model that is cut over the ranks of a worker: by tensor and expert parallelism, HSDP and FSDP."""

from __future__ import annotations

import json
import time
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Dict, List

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import cut  # noqa: E402
import sharded  # noqa: E402
from ranks import Cells  # noqa: E402


@lru_cache(maxsize=None)
def _alone(plan: str) -> Dict[str, Any]:
    with TemporaryDirectory() as folder:
        with Cells(Path(folder), "", 1, 2, 2, sharded=True, **json.loads(plan)) as cells:
            found: List[Dict[str, Any]] = cells.results("0")
    assert len({each["digest"] for each in found}) == 1
    return found[0]


def alone(plan: Dict[str, Any]) -> Dict[str, Any]:
    """What one worker of the same ranks comes to, without a coordinator."""
    return _alone(json.dumps(plan, sort_keys=True))


def some(*kinds: str) -> Any:
    """All ways to cut a model, of which only some are tried each time."""
    marked = [
        each if each in kinds else pytest.param(each, marks=pytest.mark.slow) for each in KINDS
    ]
    return pytest.mark.parametrize("kind", marked)


KINDS = sorted(cut.CUTS)


@some("experts", "fsdp and tensor", "tensor and experts", "tensor and sequence")
def test_a_late_worker_has_the_bits_of_one_worker(kind: str, tmp_path: Path) -> None:
    plan = cut.told(kind, clip="coded")
    late = {"trouble": "late", "worker": 1}
    with Cells(tmp_path, "groups:s=1", 2, 2, 2, sharded=True, **plan, **late) as cells:
        found = cells.results("0") + cells.results("1")
    reference = alone(plan)
    assert {each["digest"] for each in found} == {reference["digest"]}
    assert all(each["complete"] for each in found)
    for name in ("totals", "norms"):
        assert all(each[name] == reference[name] for each in found), name
    units = [each["report"]["units"] for each in found]
    assert min(units[:4]) == max(units[:4]) > max(units[4:]), units
    # Each number is sent once.
    assert {each["length"] for each in found} == {reference["length"]}


@some(*KINDS)
def test_it_is_the_training_of_one_process(kind: str) -> None:
    trained_like_one_process(cut.told(kind, optimizer="SGD", rate=0.3))


@some("experts", "plain experts")
def test_sums_are_those_of_one_process(kind: str) -> None:
    trained_like_one_process(cut.told(kind, optimizer="SGD", rate=0.3, reduction="tokens"))


def trained_like_one_process(plan: Dict[str, Any]) -> None:
    """By an optimizer that shows the gradient's scale, as its norm does."""
    plan = {**plan, "clip": "coded", "max_norm": 1e9}
    reference, norms = sharded.of_one_process(plan)
    scale = 1 if plan.get("reduction") == "tokens" else sharded.UNITS
    ours = [total[0] / scale for total in alone(plan)["totals"]]
    assert ours == pytest.approx(reference, rel=3e-7)
    assert alone(plan)["norms"] == pytest.approx(norms, rel=3e-7)
    assert reference[-1] < 0.95 * reference[0], "it does not learn"


@pytest.mark.parametrize("kind", ["fsdp and tensor", "hsdp"])
def test_behind_the_backward_pass_it_has_the_same_bits(kind: str, tmp_path: Path) -> None:
    """Where ranks have parts that another one hands over."""
    plan = cut.told(kind, join={"overlap": True}, early=64)
    with Cells(tmp_path, "uncoded", 2, 2, 2, sharded=True, **plan) as cells:
        found = cells.results("0") + cells.results("1")
    assert {each["digest"] for each in found} == {alone(cut.told(kind))["digest"]}
    assert found[0]["early"] > 0 and found[4]["early"] > 0, [each["early"] for each in found]


@some("fsdp and tensor")
def test_a_script_as_it_was_has_the_bits_of_one_worker(kind: str, tmp_path: Path) -> None:
    plan = cut.told(kind, prepared=True)
    with Cells(tmp_path, "groups:s=1", 2, 2, 2, sharded=True, **plan) as cells:
        found = cells.results("0") + cells.results("1")
    assert {each["digest"] for each in found} == {alone(plan)["digest"]}


@pytest.mark.parametrize(
    "kind, trouble",
    [
        ("fsdp and tensor", "killed in backward"),
        ("experts", "raises"),
        pytest.param("experts", "killed before the optimizer", marks=pytest.mark.slow),
        pytest.param("tensor", "killed in submit", marks=pytest.mark.slow),
        pytest.param("fsdp and tensor", "raises", marks=pytest.mark.slow),
    ],
)
def test_a_worker_comes_back_with_its_ranks_states(kind: str, trouble: str, tmp_path: Path) -> None:
    plan = cut.told(kind, steps=40, pause=0.03)
    told = {"trouble": trouble, "worker": 1, "rank": 1, "serve": {"log_steps": 2}}
    ended = tmp_path / "ended"
    with Cells(tmp_path, "groups:s=1", 2, 2, 2, sharded=True, **plan, **told) as cells:
        cells.start(1, "again", trouble=None, waits_for=str(ended))
        assert all(cells.statuses("1")), cells.said()
        time.sleep(1.0)
        ended.touch()
        found = cells.results("0") + cells.results("again")
    assert {each["digest"] for each in found} == {alone(plan)["digest"]}
    assert all(each["complete"] for each in found)


@pytest.mark.parametrize(
    "kind, data, words",
    [
        ("tensor", ["dp", "tp"], "is cut over 'tp', where data= says that samples are cut too"),
        (
            "hsdp",
            ["replicate"],
            "data= cuts the samples over 'replicate' alone: ranks that compute",
        ),
        ("fsdp and tensor", ["tp"], "data= cuts the samples over none alone: ranks that compute"),
    ],
)
def test_what_would_be_summed_wrongly_is_refused(
    kind: str, data: List[str], words: str, tmp_path: Path
) -> None:
    plan = {**cut.told(kind), "join": {"data": data}}
    with Cells(tmp_path, "", 1, 2, 2, sharded=True, **plan) as cells:
        assert set(cells.statuses("0")) == {1}
        last = [said.splitlines()[-1] for said in cells.said().values()]
        assert any(words in said for said in last), last
