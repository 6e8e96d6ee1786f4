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

import codedgrad.torch as coded  # noqa: E402
from codedgrad import _torch_digest  # noqa: E402
from ranks import Cells, train  # noqa: E402
from test_cells import all_results, one_digest  # noqa: E402
from test_recorder import LOOP, doctor, recorded  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


@pytest.mark.parametrize("late", [False, True])
def test_workers_of_two_ranks_have_the_bits_of_one_process(late: bool, tmp_path: Path) -> None:
    plan = {"trouble": "late", "worker": 1} if late else {}
    with Cells(tmp_path, "groups:s=1", 2, 2, device="cuda", **plan) as cells:
        assert one_digest(all_results(cells)) == train({}, {"device": "cuda"})["digest"]


def prepared(device: str, overlap: bool, accumulate: int) -> Any:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4000), nn.GELU(), nn.Linear(4000, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)
    rows = torch.randn(96, 3)
    loader: Any = DataLoader(TensorDataset(rows, rows[:, :2]), 4, shuffle=True)
    wrapped, optimizer, loader = coded.prepare(
        model, optimizer, loader, epochs=2, units=2, accumulate=accumulate, overlap=overlap,
        device_ids=[device], verify=0,
    )  # fmt: skip
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            ((wrapped(x) - y.to(device)).square().mean() / accumulate).backward()
            if (i + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    assert wrapped.run.complete
    return [each.detach().cpu() for each in model.parameters()]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_scripts_for_ddp_have_the_same_bits_however_gradients_go(accumulate: int) -> None:
    first = prepared("cuda", True, accumulate)
    again = prepared("cuda", False, accumulate)
    assert all(torch.equal(x, y) for x, y in zip(first, again))
    for x, y in zip(first, prepared("cpu", False, accumulate)):
        assert torch.allclose(x, y, atol=1e-3)


def test_its_digest_is_the_cpus_of_the_same_bits() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        numbers = torch.randn(5_000_001).to(dtype)
        right = int(_torch_digest.sum_on_device(numbers)) % 2**64
        assert _torch_digest.digest_of_bits(numbers.cuda()) == right


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
