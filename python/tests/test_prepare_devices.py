"""Scripts for DistributedDataParallel whose models are on the emulated device."""

from __future__ import annotations

from typing import Any, Iterator

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.emulated]
pytest.importorskip("torch")

import fake_device  # noqa: E402
from codedgrad._torch import announcer, staging  # noqa: E402
from ranks import clipped  # noqa: E402

if fake_device.unavailable():
    pytest.skip(str(fake_device.unavailable()), allow_module_level=True)


@pytest.fixture(autouse=True)
def as_it_begins(monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setattr(announcer, "_PART_OF_ACCELERATOR", 1)
    monkeypatch.setattr(staging, "_PIECE", 1)
    with fake_device.alone():
        yield


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_it_has_the_cpus_bits(overlap: bool, accumulate: int) -> None:
    right = clipped("cpu", False, accumulate)
    assert clipped("fake", overlap, accumulate) == right
