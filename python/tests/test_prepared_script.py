"""The whole script of docs/python.md is examples/prepared.py, and runs as the page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from test_launch import Launched  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "python" / "examples" / "prepared.py"
SHORT = ["--epochs", "1", "--every", "5"]


def digests(said: str) -> List[str]:
    return [line.split("digest ")[1] for line in said.splitlines() if "digest " in line]


def alone(folder: Path, *flags: str) -> str:
    """What the script says as one process."""
    environment = {name: value for name, value in os.environ.items() if "CODEDGRAD" not in name}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_page_shows_the_script() -> None:
    assert f"```python\n{SCRIPT.read_text()}```" in (ROOT / "docs" / "python.md").read_text()


def test_it_trains_saves_and_goes_on(tmp_path: Path) -> None:
    plain = digests(alone(tmp_path, *SHORT))
    # From the last checkpoint, before the last of 16 steps, it comes to the same end.
    again = alone(tmp_path, *SHORT)
    assert digests(again) == plain and "step 15" not in again
    (tmp_path / "checkpoint.pt").unlink()
    command = ["-n", "4", "--scheme", "groups:s=1", sys.executable, str(SCRIPT), *SHORT]
    with Launched(tmp_path, *command, "--checkpoint", str(tmp_path / "of_the_run.pt")) as run:
        assert run.ends() == 0, run.said()
    logs = [(run.folder / f"worker-{k}.log").read_text() for k in range(4)]
    assert {digest for log in logs for digest in digests(log)} == set(plain)
    assert any("validation" in log for log in logs) and any("step 5: loss" in log for log in logs)
