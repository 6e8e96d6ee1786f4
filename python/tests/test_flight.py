"""`codedgrad doctor` of dumps that PyTorch's Flight Recorder writes of jobs that hang, over Gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

torch = pytest.importorskip("torch")
import torch.distributed  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"),
        reason="this PyTorch records nothing over Gloo",
    ),
]

RANKS = 4
# Forks the ranks of all jobs, so that PyTorch is imported once. After three all-reduces a rank of
# each job does something else than the others, and what is left of it dumps what it recorded.
JOBS = """
import json, os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

home, ranks = Path(sys.argv[1]), int(sys.argv[2])
LIMIT_SECONDS = 60.0


def train(job, rank):
    x = torch.ones(8)
    for _ in range(3):
        dist.all_reduce(x)
    if (job, rank) == ("stands", 2):
        return
    if (job, rank) == ("killed", 3):
        os.kill(os.getpid(), signal.SIGKILL)
    if (job, rank) == ("other", 1):
        dist.all_gather([torch.ones(5) for _ in range(ranks)], torch.ones(5))
    try:
        dist.all_reduce(x)
    except RuntimeError:
        pass  # Another rank was killed.


def wait_for(condition):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            os._exit(1)
        time.sleep(0.1)


def entries():
    return len(json.loads(c10d._dump_fr_trace_json()).get("entries", []))


def run(job, rank):
    torch.set_num_threads(1)
    folder = home / job
    store = dist.FileStore(str(home / f"{job}.store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    threading.Thread(target=train, args=(job, rank), daemon=True).start()
    mine = 3 if (job, rank) == ("stands", 2) else 4
    wait_for(lambda: entries() == mine)
    for form, dump in (("", c10d._dump_fr_trace), (".json", c10d._dump_fr_trace_json)):
        half = home / f"{job}.{rank}{form}"
        half.write_bytes(dump())
        half.rename(folder / f"trace_{rank}{form}")
    # A rank that ends wakes up those that wait for it.
    left = ranks - (job == "killed")
    wait_for(lambda: len(list(folder.glob("*.json"))) == left)
    os._exit(0)


# The first names of frames take seconds in each process that has not had any before.
frames = torch._C._profiler
frames.symbolize_tracebacks([frames.gather_traceback(True, True, False)])
processes = []
for job in ("stands", "other", "killed"):
    (home / job).mkdir()
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            run(job, rank)
        processes.append(process)
ended = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
sys.exit(ended.count(0) != len(ended) - 1 or ended[-1] != -signal.SIGKILL)
"""


def doctor(folder: Path, *more: str) -> Any:
    said = subprocess.run(
        [sys.executable, "-m", "codedgrad", "doctor", str(folder), "--json", *more],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_the_rank_that_holds_up_a_job_is_named(tmp_path: Path) -> None:
    script = tmp_path / "jobs.py"
    script.write_text(JOBS)
    environment: Dict[str, str] = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(RANKS)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=120,
    )
    group = "of group default_pg (ranks 0-3)"
    verdicts = {
        "stands": f"rank 2 has not entered all_reduce number 4 {group}: the other 3 wait in it",
        "other": f"rank 1 has called all_gather as number 4 {group}, where ranks 0, 2-3 called "
        "all_reduce",
        "killed": f"rank 3 {group} has no dump, as after a kill: the other 3 have entered all_reduce "
        "number 4",
    }
    for job, verdict in verdicts.items():
        found = doctor(tmp_path / job)
        assert found["verdict"] == verdict
        first = found["problems"][0]
        places = {call["at"] for called in first["called"] for call in called["calls"]}
        assert all(str(script) in place for place in places), places
        # As JSON they have no frames.
        bare = tmp_path / f"{job}-json"
        bare.mkdir()
        for path in (tmp_path / job).glob("*.json"):
            path.rename(bare / path.name)
        assert doctor(bare)["verdict"] == verdict
    assert doctor(tmp_path / "killed")["without_dump"] == [3]

    # A dump that is cut says so, and accuses no rank of what came behind the cut.
    cut = tmp_path / "stands" / "trace_0"
    cut.write_bytes(cut.read_bytes()[:-20])
    said = subprocess.run(
        [sys.executable, "-m", "codedgrad", "doctor", str(cut.parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "trace_0: the file was cut off after 3 collectives" in " ".join(said.stderr.split())
    assert said.stdout.startswith("rank 2 has not entered all_reduce number 4")


def test_a_pickle_that_builds_objects_is_refused(tmp_path: Path) -> None:
    import pickle

    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": [Path("x")]}, protocol=2))
    said = subprocess.run(
        [sys.executable, "-m", "codedgrad", "doctor", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert said.returncode == 2
    assert "the opcode GLOBAL builds objects" in " ".join(said.stderr.split())
