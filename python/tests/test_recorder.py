"""`codedgrad.record`: what it writes beside a loop that knows nothing of it, and what that is for."""

from __future__ import annotations

import copy
import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")
import codedgrad  # noqa: E402
from codedgrad._torch import spans  # noqa: E402

pytestmark = pytest.mark.torch

# A loop under DistributedDataParallel. A rank sleeps for 200 ms in its backward pass.
LOOP = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import codedgrad

folder, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
slow = dist.get_rank() == 1
torch.set_num_threads(1)
torch.manual_seed(0)


class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.2)
        return gradient


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if slow and number == 3:
                x = Late.apply(x)
        return x


model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters())
recorder = codedgrad.record(model, optimizer, folder)
for step in range(steps):
    x = torch.randn(8, 64)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
# A rank whose interpreter ends is now and then aborted by torch, "terminate called without an active
# exception", with and without the recorder: a thread of the process group outlives it.
dist.barrier()
recorder.close()
os._exit(0)
"""


def recorded(home: Path, text: str, ranks: int, *more: str) -> Path:
    """The folder that the ranks of a script have written, which torchrun starts."""
    script, folder = home / "loop.py", home / "steps"
    script.write_text(text)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    ended = subprocess.run(
        [sys.executable, *launcher, str(script), str(folder), *more],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    return folder


def rows_of(path: Path) -> List[Dict[str, str]]:
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# host "), lines[0]
    return list(csv.DictReader(lines[1:]))


def doctor(folder: Path) -> Any:
    said = subprocess.run(
        [sys.executable, "-m", "codedgrad", "doctor", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(said.stdout), said.stderr


def test_the_slow_rank_of_a_ddp_job_is_named(tmp_path: Path) -> None:
    folder = recorded(tmp_path, LOOP, 3, "12")
    for rank in range(3):
        rows = rows_of(folder / f"rank-{rank}.csv")
        assert [int(row["step"]) for row in rows] == list(range(12))
        for row in rows[1:]:
            stamps = [float(row[name]) for name in ("began", "forward", "first", "last", "ended")]
            assert stamps == sorted(stamps)
    found, notes = doctor(folder)
    worst = found["worst_workers"]
    assert worst["workers"] == [1], found
    said = " ".join(notes.split())
    assert re.fullmatch(r"rank 1: .* It takes 0\.\d+ s longer for the backward pass", said), notes
    planned = subprocess.run(
        [sys.executable, "-m", "codedgrad", "plan", "--delays", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(planned.stdout)["workers"] == 3


def trained(folder: Path, steps: int) -> codedgrad.Recorder:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = codedgrad.record(model, optimizer, folder)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return recorder


def test_the_first_steps_are_written_at_once(tmp_path: Path) -> None:
    recorder = trained(tmp_path, 7)
    assert len(rows_of(tmp_path / "rank-0.csv")) == 7
    recorder.close()
    # Another rank that ended before its first step is named, and stops no other's times.
    (tmp_path / "rank-1.csv").write_text("# host h, rank 1 of 2, torch 2")
    found, _ = doctor(tmp_path)
    assert found["steps"] == 6
    assert any("rank 1: its file has no step" in gone for gone in found["not_seen"])


def test_a_start_of_its_own_has_files_of_its_own(tmp_path: Path) -> None:
    with trained(tmp_path, 3):
        pass
    trained(tmp_path, 5).close()
    assert len(rows_of(tmp_path / "rank-0.csv")) == 3
    assert len(rows_of(tmp_path / "rank-0.start-1.csv")) == 5
    found, notes = doctor(tmp_path)
    assert found["steps"] == 4 and "started 2 times" in notes


def test_after_the_first_step_only_the_hooks_of_buckets_are_left(tmp_path: Path) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with codedgrad.record(model, optimizer, tmp_path):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        hooked = [each for each in model.parameters() if each._backward_hooks]
        # The first one's gradient comes last, the last one's first.
        assert len(hooked) == 2
    assert not any(each._backward_hooks for each in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks and not model._forward_pre_hooks


def test_an_error_of_the_recorder_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    trained(tmp_path / "file" / "steps", 3).close()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("codedgrad.record is off, and the job goes on")
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    codedgrad.record(frozen, torch.optim.SGD([torch.ones(1)], lr=1.0), tmp_path)
    assert "no parameter that takes a gradient" in capsys.readouterr().err
    assert not list(tmp_path.glob("rank-*.csv"))


FULL = """
import resource, signal, sys
import torch
import codedgrad
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1200, 1200))
codedgrad._torch.recorder._FLUSH_SECONDS = 0.0
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = codedgrad.record(model, optimizer, sys.argv[1])
for step in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""


def test_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", "import codedgrad._torch.recorder\n" + FULL, str(tmp_path / "steps")],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0 and said.stdout == "trained\n", said.stderr
    assert said.stderr.count("codedgrad.record is off") == 1, said.stderr
    found, _ = doctor(tmp_path / "steps")
    assert 2 <= found["steps"] < 30


# A loop whose data is read by other processes; one more is forked beside, and ends as Python does.
LOADED = """
import os, sys
import torch
import codedgrad


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, item):
        return torch.full((4,), float(item))


if __name__ == "__main__":
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    codedgrad.record(model, optimizer, sys.argv[1])
    child = os.fork()
    if child == 0:
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    loader = torch.utils.data.DataLoader(
        Data(), 4, num_workers=2, multiprocessing_context=sys.argv[2]
    )
    for epoch in range(2):
        for x in loader:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_processes_that_load_data_write_nothing(tmp_path: Path, context: str) -> None:
    script = tmp_path / "loop.py"
    script.write_text(LOADED)
    said = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "steps"), context],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert said.returncode == 0 and said.stderr == "", said.stderr
    assert [path.name for path in (tmp_path / "steps").iterdir()] == ["rank-0.csv"]
    rows = rows_of(tmp_path / "steps" / "rank-0.csv")
    assert [row["step"] for row in rows] == [str(step) for step in range(12)]
    assert all(row["began"] for row in rows[1:])


def test_a_model_may_be_copied_and_saved_whole(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with codedgrad.record(model, optimizer, tmp_path / "steps") as recorder:
        torch.save(model, tmp_path / "model")
        averaged = copy.deepcopy(model)
        saved = torch.load(tmp_path / "model", weights_only=False)
        for other in (averaged, saved):
            assert other(torch.ones(2, 4)).shape == (2, 1)
            assert not recorder._passes._turns
        model(torch.ones(2, 4))
        assert recorder._passes._turns[1::2] == [spans.FORWARD, spans.LOSS]
    # Whoever loads it need not have this package.
    assert b"_torch.recorder" not in (tmp_path / "model").read_bytes()
