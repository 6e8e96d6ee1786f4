"""Tests with the marker `torch` are skipped where PyTorch is not: CI leaves them out by the marker.

Those with the marker `emulated` are run here only where no others are: a process that has the
emulated device has it as its accelerator for good. Among others `test_accelerators.py` stands for
them.
"""

import importlib.util
from typing import Iterator, List

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: List[pytest.Item]) -> None:
    emulated = [item for item in items if item.get_closest_marker("emulated")]
    if len(emulated) < len(items):
        items[:] = [item for item in items if item not in emulated]
        config.hook.pytest_deselected(items=emulated)
    if importlib.util.find_spec("torch") is not None:
        return
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch computes in one thread meanwhile: its bits may depend on how many there are."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
