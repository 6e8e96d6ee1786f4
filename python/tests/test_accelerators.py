"""Models on accelerators: all tests that need the emulated device, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

import fake_device  # noqa: E402

FILES = ["test_fake_device.py", "test_staging.py", "test_sums.py", "test_devices.py"]
FILES += ["test_prepare_devices.py", "test_shortages.py"]


def test_on_the_emulated_device() -> None:
    why = fake_device.unavailable()
    if why is not None:
        pytest.skip(why)
    paths = [str(Path(__file__).with_name(name)) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
