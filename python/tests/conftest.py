"""Tests with the marker `torch` are skipped where PyTorch is not: CI leaves them out by the marker."""

import importlib.util
from typing import List

import pytest


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    if importlib.util.find_spec("torch") is not None:
        return
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason="PyTorch is not installed"))
