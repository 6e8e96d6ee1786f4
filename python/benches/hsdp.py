"""What a coded step of a sharded model costs beside PyTorch's HSDP, over gloo.

    python python/benches/hsdp.py                           # 4.8 M parameters, one micro-batch a worker
    python python/benches/hsdp.py --width 1100 --micro 4    # 40 M parameters, four micro-batches
    python python/benches/hsdp.py --late 10                 # a worker that is late by ten undelayed steps
    python python/benches/hsdp.py --state --width 1100      # memory while a state is taken over

Two nodes of two processes on this host, one thread each: HSDP's mesh of 2 x 2, and two workers of
two ranks under `--scheme`. They take turns, each a run of its own. `cpu` is that of all four
processes (and of the coordinator, which is in one more), `wall` the first process's, both for a
step: medians over the steps of a turn but the first three, then over the turns. With `--late` the
second node sleeps before each forward pass, as one that waits for its GPU. Prints one JSON object.

With `--state` the second worker sleeps, and takes over the first one's state: parameters and two moments
of AdamW. Of each rank the most memory that it had from then on is given (`VmHWM`), and how much
more that was than before, in states of a worker.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import codedgrad.torch as coded

WORDS, ROWS, LENGTH = 512, 2, 16
SKIPPED = 3


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.embed(x)
        for block in self.blocks:
            found = block(found)
        return self.head(found)


def sharded(told: argparse.Namespace, mesh: Any) -> Any:
    torch.manual_seed(1)
    model: Any = Net(told.width)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def loss_of(model: nn.Module, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator)
    return F.cross_entropy(model(x).reshape(-1, WORDS), ((x * 3 + 1) % WORDS).reshape(-1))


class Clock:
    """Seconds of each step: of this process's threads, and on the wall."""

    def __init__(self) -> None:
        self._marks: List[List[float]] = []

    def mark(self) -> None:
        self._marks.append([time.process_time(), time.perf_counter()])

    def medians(self) -> List[float]:
        steps = [[b - a for a, b in zip(*pair)] for pair in zip(self._marks, self._marks[1:])]
        return [statistics.median(each) for each in zip(*steps[SKIPPED:])]


class Memory:
    """The most memory that this process has had since it was made."""

    def __init__(self) -> None:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self._before = self._of("VmRSS")

    @staticmethod
    def _of(name: str) -> int:
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith(name))

    def most(self) -> List[float]:
        """In all, and beyond what it had then."""
        most = self._of("VmHWM")
        return [most, most - self._before]


def taking_over(
    told: argparse.Namespace, rank: int, where: Dict[str, Any], folder: str
) -> List[float]:
    """The second worker sleeps until the first one has made more steps than what is kept of them."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    model = sharded(told, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    late = where["worker"] == 1
    run = coded.join(
        model, optimizer, units=2, steps=told.steps, unit_samples=2, mesh=mesh, **where
    )
    memory = None
    for step in run:
        if step.index >= 2 * SKIPPED and memory is None:
            memory = Memory()
            open(f"{folder}/ahead", "w").close()
        for micro in step:
            while late and step.index == SKIPPED and not os.path.exists(f"{folder}/ahead"):
                time.sleep(0.05)
            memory = Memory() if late and step.index == SKIPPED else memory
            # The other one comes back before this one is done.
            time.sleep(0.0 if late or memory is None else 1.0)
            loss_of(model, 1000 * step.index + 10 * micro.unit + rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert memory is not None and run.report()["resyncs"] >= late, run.report()
    return memory.most()


def plain(told: argparse.Namespace, rank: int) -> List[float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = sharded(told, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    clock = Clock()
    for step in range(told.steps):
        clock.mark()
        for micro in range(told.micro):
            model.set_requires_all_reduce(micro + 1 == told.micro)
            time.sleep(told.pause if rank >= 2 else 0.0)
            loss_of(model, 1000 * step + 10 * micro + rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    clock.mark()
    return clock.medians()


def worker(told: argparse.Namespace, rank: int, where: Dict[str, Any]) -> List[float]:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
    model = sharded(told, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = coded.join(
        model,
        optimizer,
        units=2 * told.micro,
        steps=told.steps,
        unit_samples=2,
        mesh=mesh,
        verify=told.verify,
        **where,
    )
    clock = Clock()
    for step in run:
        clock.mark()
        for micro in step:
            time.sleep(told.pause if where["worker"] else 0.0)
            loss_of(model, 1000 * step.index + 10 * micro.unit + rank).backward()
        optimizer.step()
        optimizer.zero_grad()
    clock.mark()
    return clock.medians()


def process(
    told: argparse.Namespace, folder: str, name: str, rank: int, size: int, where: Dict[str, Any]
) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/{name}.store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    if told.state:
        found = taking_over(told, rank, where, folder)
    else:
        found = worker(told, rank, where) if where else plain(told, rank)
    with open(f"{folder}/{name}-{rank}.json", "w") as file:
        json.dump(found, file)
    # A thread of gloo may abort a process that shuts down.
    os._exit(0)


def turn(kind: str, told: argparse.Namespace) -> Dict[str, Any]:
    spawn = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory() as folder:
        if kind == "hsdp":
            tasks = [("hsdp", rank, 4, {}) for rank in range(4)]
            run = None
        else:
            run = coded.serve(
                told.scheme,
                workers=2,
                units=2 * told.micro,
                unit_samples=2,
                steps=told.steps,
                length=coded.length(Net(told.width)),
                **({"log_steps": 2} if told.state else {}),
            )
            where = {"address": run.address, "token": run.token}
            tasks = [
                (str(k), rank, 2, {**where, "worker": k}) for k in range(2) for rank in range(2)
            ]
        began = time.process_time()
        all_of: List[Any] = [
            spawn.Process(target=process, args=(told, folder, name, rank, size, where))
            for name, rank, size, where in tasks
        ]
        for each in all_of:
            each.start()
        for each in all_of:
            each.join()
            assert each.exitcode == 0
        coordinator = (time.process_time() - began) / told.steps
        if run is not None:
            run.stop()
        found = []
        for name, rank, _, _ in tasks:
            with open(f"{folder}/{name}-{rank}.json") as file:
                found.append(json.load(file))
    if told.state:
        size = 3 * 4 * coded.length(Net(told.width))
        return {
            f"worker {name}, rank {rank}": [round(each / size, 2) for each in memory]
            for (name, rank, _, _), memory in zip(tasks, found)
        }
    return {"cpu": sum(cpu for cpu, _ in found) + coordinator, "wall": found[0][1]}


def medians(turns: List[Dict[str, float]]) -> Dict[str, float]:
    return {name: statistics.median(each[name] for each in turns) for name in turns[0]}


def measured(told: argparse.Namespace, say: Callable[[str], None]) -> Dict[str, Any]:
    turns: Dict[str, List[Dict[str, float]]] = {"hsdp": [], "coded": []}
    for place in range(told.turns):
        for kind in ("hsdp", "coded") if place % 2 else ("coded", "hsdp"):
            found = turn(kind, told)
            turns[kind].append(found)
            say(f"turn {place + 1} of {told.turns}, {kind}: {1e3 * found['wall']:.0f} ms a step")
    middle = {kind: medians(several) for kind, several in turns.items()}
    ratios = {name: middle["coded"][name] / middle["hsdp"][name] for name in ("cpu", "wall")}
    return {"parameters": coded.length(Net(told.width)), **middle, "ratio": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--width", type=int, default=372, help="372: 4.8 M parameters, 1100: 40 M")
    parser.add_argument("--micro", type=int, default=1, help="micro-batches of a worker in a step")
    parser.add_argument("--scheme", default="uncoded")
    parser.add_argument("--late", type=float, default=0.0, help="undelayed steps of HSDP")
    parser.add_argument("--verify", type=int, default=1)
    parser.add_argument("--steps", type=int, default=23)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--state", action="store_true", help="memory while a state is taken over")
    told = parser.parse_args()
    told.pause = 0.0

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if told.state:
        told.scheme, told.steps = "groups:s=1", 12
        print(json.dumps({"parameters": coded.length(Net(told.width)), **turn("coded", told)}))
        return
    if told.late:
        told.pause = told.late * turn("hsdp", told)["wall"] / told.micro
    print(json.dumps({**vars(told), **measured(told, say)}))


if __name__ == "__main__":
    main()
