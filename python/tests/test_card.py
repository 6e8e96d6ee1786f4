"""What holds on the emulated device, on a card, where there is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no card here", allow_module_level=True)

from codedgrad._torch import host  # noqa: E402
from ranks import Cells, clipped, train  # noqa: E402
from test_cells import all_results, one_digest  # noqa: E402
from test_recorder import LOOP, doctor, recorded  # noqa: E402


@pytest.mark.parametrize("late", [False, True])
def test_workers_of_two_ranks_have_the_bits_of_one_process(late: bool, tmp_path: Path) -> None:
    plan = {"trouble": "late", "worker": 1} if late else {}
    with Cells(tmp_path, "groups:s=1", 2, 2, device="cuda", **plan) as cells:
        assert one_digest(all_results(cells)) == train({}, {"device": "cuda"})["digest"]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_scripts_for_ddp_have_the_same_bits_however_gradients_go(accumulate: int) -> None:
    def trained(device: str, overlap: bool) -> Any:
        return clipped(device, overlap, accumulate, hidden=4000, rate=1e-3)["bits"]

    first = trained("cuda", True)
    assert trained("cuda", False) == first
    for x, y in zip(first, trained("cpu", False)):
        assert torch.allclose(torch.tensor(x), torch.tensor(y), atol=1e-3)


def test_its_digest_is_the_cpus_of_the_same_bits() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        numbers = torch.randn(5_000_001).to(dtype)
        right = int(host.sum_on_device(numbers)) % 2**64
        assert host.digest_of_bits(numbers.cuda()) == right


def test_a_rank_whose_card_is_slow_in_the_forward_pass_is_named(tmp_path: Path) -> None:
    on_card = (
        LOOP.replace("DDP(Model())", "DDP(Model().cuda(), device_ids=[0])")
        .replace("torch.randn(8, 64)", 'torch.randn(8, 64, device="cuda")')
        # About 0.2 s of a card's clock, for which the host does not wait.
        .replace(
            'where == "forward":\n            time.sleep(0.2)',
            'where == "forward":\n            torch.cuda._sleep(350_000_000)',
        )
    )
    assert on_card.count("cuda") == 3
    found, notes = doctor(recorded(tmp_path, on_card, 2, "forward", "16"))
    assert found["worst_workers"]["workers"] == [1], (found, notes)
    parts = re.search(r"rank 1: .*, (\S+) s forward, (\S+) s backward", " ".join(notes.split()))
    assert parts is not None, notes
    forward, backward = map(float, parts.groups())
    assert forward > backward, notes
