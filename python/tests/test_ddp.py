"""Scripts for DistributedDataParallel and the same as workers, in processes: lines and bits."""

from __future__ import annotations

import difflib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from codedgrad import loop  # noqa: E402

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 120.0
SMALL = "--epochs 3 --rows 4 --context 16 --width 16 --layers 1 --heads 2".split()


def changed(before: str, after: str) -> List[str]:
    """The lines that differ, each with its sign."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [each for each in lines if not each.startswith(("---", "+++", "@@"))]


def body(script: str, loop_line: str) -> str:
    """The loop's body."""
    lines = script.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == loop_line)
    indent = len(lines[start]) - len(lines[start].lstrip())
    rest = lines[start + 1 :]
    end = next(i for i, line in enumerate(rest) if len(line) - len(line.lstrip()) <= indent)
    return "\n".join(rest[:end])


def test_no_line_of_the_loop_differs() -> None:
    plain, coded = [(EXAMPLES / f"ddp_{which}.py").read_text() for which in ("plain", "coded")]
    line = "for i, (x, y) in enumerate(loader):"
    assert body(plain, line) == body(coded, line) != ""
    # All but the text that says what it is.
    found = changed(plain.split('"""', 2)[2], coded.split('"""', 2)[2])
    assert sum(each.startswith("-") for each in found) <= 12
    assert sum(each.startswith("+") for each in found) <= 12


class Processes:
    """Some processes of a script, whose output is read at the end."""

    def __init__(self) -> None:
        self._all: List["subprocess.Popen[str]"] = []

    def start(self, command: List[str], **environment: str) -> None:
        others = {k: v for k, v in os.environ.items() if not k.startswith("CODEDGRAD_")}
        self._all.append(
            subprocess.Popen(
                [sys.executable, *command],
                env={**others, "OMP_NUM_THREADS": "1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=EXAMPLES,
            )
        )

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._all:
            process.kill()
            process.communicate()

    def outputs(self) -> List[str]:
        found = [process.communicate(timeout=LIMIT_SECONDS) for process in self._all]
        for process, (_, errors) in zip(self._all, found):
            assert process.returncode == 0, errors
        return [output for output, _ in found]


def hashes(outputs: List[str]) -> List[str]:
    return [output.split("sha256 ")[1].split()[0] for output in outputs]


def under_ddp(script: Path, ranks: int, *flags: str) -> List[str]:
    with socket.socket() as probe, Processes() as processes:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        for rank in range(ranks):
            processes.start(
                [str(script), *flags],
                RANK=str(rank),
                WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            )
        return processes.outputs()


def coded(
    script: Path, scheme: str, workers: int, told: Dict[str, Any], *flags: str, **environment: str
) -> List[str]:
    with loop.serve(scheme, workers=workers, max_wait=LIMIT_SECONDS, **told) as run, Processes() as all:
        for worker in range(workers):
            all.start(
                [str(script), *flags],
                CODEDGRAD_WORKERS=str(workers),
                **run.environment(worker),
                **environment,
            )
        found = all.outputs()
        assert run.wait(LIMIT_SECONDS)
    return found


@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_workers_have_the_bits_of_two_ranks(accumulate: int) -> None:
    plain, twin = EXAMPLES / "ddp_plain.py", EXAMPLES / "ddp_coded.py"
    flags = [*SMALL, "--accumulate", str(accumulate)]
    ranks = under_ddp(plain, 2, *flags)
    told = dict(units=2, unit_samples=4 * accumulate, length=length(), steps=steps(accumulate))
    workers = coded(twin, "uncoded", 2, told, *flags)
    assert len(set(hashes(ranks + workers))) == 1
    # The losses, too, which one of them prints.
    said = [[line for line in out.splitlines() if "epoch" in line] for out in ranks + workers]
    assert said[0] and said[0] == [line for lines in said[2:] for line in lines]


def length() -> int:
    """Numbers of a gradient of the small model."""
    import importlib.util
    from types import SimpleNamespace

    spec = importlib.util.spec_from_file_location("nanogpt", EXAMPLES / "nanogpt.py")
    assert spec is not None and spec.loader is not None
    nanogpt: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    shape = SimpleNamespace(context=16, layers=1, heads=2, width=16, dropout=0.0)
    global _SAMPLES
    _SAMPLES = (len(nanogpt.DATA) - 17) // 4
    return sum(each.numel() for each in nanogpt.GPT(shape).parameters())


_SAMPLES: Optional[int] = None


def steps(accumulate: int) -> int:
    assert _SAMPLES is not None
    return 3 * (_SAMPLES // 2 // (4 * accumulate))
