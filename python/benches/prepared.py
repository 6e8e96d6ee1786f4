"""What a DDP script costs as a worker: beside the iterator's loop, and beside DDP itself.

    python python/benches/prepared.py iteration          # CPU beyond that of the iterator's unit
    python python/benches/prepared.py step --turns 3     # four workers, calm and one late, beside DDP

`iteration` trains 100,000 numbers in this process alone, in turns of blocks; times are the main
thread's CPU a step. `step` trains the small GPT of `examples/nanogpt.py` in four processes that
sleep beside their computing, 0.1 s for the rows of one rank, as one does that waits for its GPU;
under a code as much more as it computes. The late one, the last, sleeps ten times as long. Ways take
turns, each in processes of its own; times are worker 0's from the end of a step to that of the next,
the mean of 12 after the first four, and the median of the turns. Every command prints one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import codedgrad.torch as coded

sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))
import nanogpt  # noqa: E402

WORKERS, ROWS, CONTEXT, SECONDS = 4, 16, 32, 0.1
STEPS, LEFT_OUT = 16, 4
SHAPE = SimpleNamespace(context=CONTEXT, layers=2, heads=4, width=64, dropout=0.0)
# The units of a step; DDP has none.
WAYS = {"ddp": 0, "uncoded": 4, "groups:s=1": 4, "ring:reach=2": 4, "queue:m=2": 8}


def iteration(options: argparse.Namespace) -> Dict[str, Any]:
    """Steps of one unit, by both loops."""
    steps = options.blocks * options.steps

    def parts() -> Tuple[Any, Any]:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)), nn.Linear(128, 8))
        return model, torch.optim.SGD(model.parameters(), 1e-3)

    data = TensorDataset(torch.randn(64, 128))
    model, optimizer = parts()
    count = sum(each.numel() for each in model.parameters())
    run = coded.join(model, optimizer, units=1, steps=steps, unit_samples=8)
    loader = coded.Loader(data, run)
    asked = iter(run)
    other, stepper = parts()
    plain: Any = DataLoader(data, 8, shuffle=True)
    wrapped, stepper, ready = coded.prepare(other, stepper, plain, steps=steps)
    batches = endless(ready)

    def iterated() -> None:
        step = next(asked)
        for micro in step:
            model(loader(micro)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def prepared() -> None:
        wrapped(next(batches)[0]).square().mean().backward()
        stepper.step()
        stepper.zero_grad()

    times: Dict[str, List[float]] = {"iterator": [], "prepare": []}
    ways: List[Tuple[str, Callable[[], None]]] = [("iterator", iterated), ("prepare", prepared)]
    for _ in range(options.blocks):
        for name, once in ways:
            for _ in range(options.steps):
                began = time.thread_time()
                once()
                times[name].append(time.thread_time() - began)
    medians = {name: 1e3 * statistics.median(found) for name, found in times.items()}
    cost = medians["prepare"] - medians["iterator"]
    return {"numbers": count, "ms a step": medians, "ms an iteration beyond a unit": cost}


def endless(loader: Any) -> Any:
    while True:
        yield from loader


def worker(way: str, late: bool) -> None:
    """One of four processes."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    units = WAYS[way]
    rows = ROWS * WORKERS // units if units else ROWS
    model: Any = nanogpt.GPT(SHAPE)
    optimizer: Any = torch.optim.AdamW(model.parameters(), 1e-3)
    starts = torch.arange(ROWS * WORKERS * STEPS) % (len(nanogpt.DATA) - CONTEXT)
    data = TensorDataset(*nanogpt.windows(starts.tolist(), CONTEXT))
    loader: Any = DataLoader(data, rows, shuffle=True, drop_last=True)
    if units:
        model, optimizer, loader = coded.prepare(model, optimizer, loader, epochs=1, units=units)
        number = model.run.worker
    else:
        torch.distributed.init_process_group("gloo")
        number = torch.distributed.get_rank()
        sampler: Any = torch.utils.data.DistributedSampler(data)
        loader = DataLoader(data, rows, sampler=sampler, drop_last=True)
        model = nn.parallel.DistributedDataParallel(model)
    pause = SECONDS * rows / ROWS * (10 if late and number == WORKERS - 1 else 1)
    ends = []
    for x, y in loader:
        if not units or not model.run.hollow:
            time.sleep(pause)
        model(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not units or model.run.sync_gradients:
            ends.append(time.perf_counter())
    if number == 0:
        gaps = [after - before for before, after in zip(ends, ends[1:])][LEFT_OUT - 1 :]
        print(json.dumps(1e3 * statistics.mean(gaps)), flush=True)
    if not units:
        torch.distributed.destroy_process_group()


def together(way: str, late: bool) -> float:
    """Milliseconds a step of four processes."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("CODEDGRAD_")}
    environment["OMP_NUM_THREADS"] = "1"
    started: List[Any] = []

    def start(more: Dict[str, str]) -> None:
        command = [sys.executable, __file__, "worker", "--way", way, *(["--late"] if late else [])]
        each = {**environment, **more}
        started.append(subprocess.Popen(command, env=each, stdout=subprocess.PIPE, text=True))

    def found() -> float:
        said = [each.communicate()[0] for each in started]
        assert not any(each.returncode for each in started)
        return float(json.loads("".join(said)))

    if not WAYS[way]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        for rank in range(WORKERS):
            where = {"RANK": str(rank), "WORLD_SIZE": str(WORKERS), "MASTER_PORT": port}
            start({**where, "MASTER_ADDR": "127.0.0.1"})
        return found()
    told = dict(workers=WORKERS, units=WAYS[way], unit_samples=ROWS * WORKERS // WAYS[way])
    length = coded.length(nanogpt.GPT(SHAPE))
    with coded.serve(way, steps=STEPS, length=length, **told) as run:  # type: ignore[arg-type]
        for number in range(WORKERS):
            start({**run.environment(number), "CODEDGRAD_WORKERS": str(WORKERS)})
        took = found()
        run.wait()
    return took


def step(options: argparse.Namespace) -> Dict[str, Any]:
    """All ways in turns, calm and late."""
    loads = [os.getloadavg()[0]]
    times: Dict[str, List[float]] = {}
    for _ in range(options.turns):
        for way in options.ways.split(","):
            for late in (False, True):
                if late and way == "uncoded":
                    continue
                times.setdefault(f"{way}, late" if late else way, []).append(together(way, late))
        loads.append(os.getloadavg()[0])
    medians = {name: round(statistics.median(found), 1) for name, found in times.items()}
    calm, late = medians["ddp"], medians["ddp, late"]
    ratios = {
        name: round(found / (late if name.endswith("late") else calm), 3)
        for name, found in medians.items()
    }
    return {"ms a step": medians, "of ddp": ratios, "all": times, "load": loads}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a DDP script costs as a worker.")
    parser.add_argument("what", choices=["iteration", "step", "worker"])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--way")
    parser.add_argument("--late", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "worker":
        worker(options.way, options.late)
        return
    found = iteration(options) if options.what == "iteration" else step(options)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
