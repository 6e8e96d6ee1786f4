"""Scripts for DistributedDataParallel whose models are on the emulated device."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
torch = pytest.importorskip("torch")

import codedgrad.torch as coded  # noqa: E402
import fake_device  # noqa: E402
from codedgrad import _torch_overlap, _torch_staging  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)


@pytest.fixture(autouse=True)
def as_it_begins(monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setattr(_torch_overlap, "_PART_OF_ACCELERATOR", 1)
    monkeypatch.setattr(_torch_staging, "_PIECE", 1)
    with fake_device.alone():
        yield


def trained(device: str, overlap: bool, accumulate: int, **more: Any) -> Dict[str, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, foreach=True)
    rows = torch.randn(96, 3)
    data = TensorDataset(rows, rows[:, :2])
    loader: Any = DataLoader(data, 4, shuffle=True)
    wrapped, optimizer, loader = coded.prepare(
        model, optimizer, loader, epochs=2, units=2, accumulate=accumulate, overlap=overlap,
        device_ids=[device], verify=0, **more,
    )  # fmt: skip
    for epoch in range(2):
        for i, (x, y) in enumerate(loader):
            loss = (wrapped(x) - y.to(device)).square().mean() / accumulate
            wrapped.run.report(loss)
            loss.backward()
            if (i + 1) % accumulate == 0:
                torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    found: List[Any] = [each.detach().cpu().tolist() for each in model.parameters()]
    assert wrapped.run.complete
    return {"bits": found, "totals": list(wrapped.run.totals)}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_it_has_the_cpus_bits(overlap: bool, accumulate: int) -> None:
    right = trained("cpu", False, accumulate)
    assert trained("fake", overlap, accumulate) == right
