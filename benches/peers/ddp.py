"""Steps of data-parallel training in PyTorch over gloo, one process per worker, one thread each.

    python benches/peers/ddp.py --workers 4
    python benches/peers/ddp.py --workers 4 --late-worker 3

Two ways: `all-reduce` is backward followed by one all-reduce of the flat gradient, `ddp` is
DistributedDataParallel, which sends buckets while backward goes on. Both train the same network on
the same random rows. A step has a fixed number of micro-batches, in equal parts on all workers;
each sleeps for a while beside its computing, as a process does that waits for its GPU, and
the late worker sleeps ten times as long. The two take turns in blocks of steps, the first of each
block left out; a step's time is worker 0's, from the end of one step to the end of the next. Prints
one JSON object.
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Callable, Dict, List, Tuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Work:
    """What is trained, and how long a micro-batch takes."""

    units: int = 8
    rows: int = 16
    width: int = 1024
    seconds: float = 0.02
    late_seconds: float = 0.2

    def model(self) -> nn.Module:
        """Of 2.1 million parameters, 8.4 MB."""
        torch.manual_seed(1)
        half = self.width // 2
        return nn.Sequential(
            nn.Linear(half, self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, half),
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def loss(self, model: nn.Module, late: bool) -> torch.Tensor:
        """That of a micro-batch."""
        time.sleep(self.late_seconds if late else self.seconds)
        x = torch.randn(self.rows, self.width // 2)
        return (model(x) - x).square().mean()


Step = Callable[[bool], float]
"""Computes and applies one step, late or not; gives back the seconds after its last backward."""


def all_reduce(work: Work, rank: int, workers: int) -> Step:
    """Backward, then one all-reduce of the flat gradient."""
    model = work.model()
    optimizer = work.optimizer(model)
    parameters = list(model.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    # Gradients after the all-reduce are parts of the flat one: nothing is copied back.
    parts, place = [], 0
    for parameter in parameters:
        parts.append(flat[place : place + parameter.numel()].view_as(parameter))
        place += parameter.numel()

    def step(late: bool) -> float:
        for _ in range(work.units // workers):
            loss = work.loss(model, late) / work.units
            loss.backward()
        begun = time.perf_counter()
        torch.cat([parameter.grad.view(-1) for parameter in parameters], out=flat)
        dist.all_reduce(flat)
        for parameter, part in zip(parameters, parts):
            parameter.grad = part
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begun

    return step


def ddp(work: Work, rank: int, workers: int) -> Step:
    """DistributedDataParallel, whose last micro-batch sends."""
    model = nn.parallel.DistributedDataParallel(work.model(), gradient_as_bucket_view=True)
    optimizer = work.optimizer(model)
    own = work.units // workers

    def step(late: bool) -> float:
        for unit in range(own):
            with contextlib.nullcontext() if unit == own - 1 else model.no_sync():
                # It takes the mean over the workers.
                loss = work.loss(model, late) / own
                loss.backward()
        begun = time.perf_counter()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - begun

    return step


WAYS = {"all-reduce": all_reduce, "ddp": ddp}


def begin(rank: int, port: int, workers: int) -> "dist.TCPStore":
    """Joins a process group over loopback."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore(HOST, port, is_master=False)
    limit = timedelta(seconds=300)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=limit)
    return store


def block(step: Step, steps: int, late: bool) -> Tuple[List[float], List[float]]:
    """Seconds of each of so many steps in a row, but the first, and what `step` gave back."""
    dist.barrier()
    ends, afters = [], []
    for _ in range(steps):
        afters.append(step(late))
        ends.append(time.perf_counter())
    return [end - begun for begun, end in zip(ends, ends[1:])], afters[1:]


def milliseconds(blocks: List[List[float]]) -> Dict[str, object]:
    """The median of all steps, and the medians of the blocks that are least and most."""
    medians = [statistics.median(times) * 1e3 for times in blocks]
    whole = statistics.median(time * 1e3 for times in blocks for time in times)
    return {
        "median": round(whole, 2),
        "blocks": [round(min(medians), 2), round(max(medians), 2)],
    }


def arguments(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=8, help="turns of each")
    parser.add_argument("--steps", type=int, default=9, help="steps of a block, the first left out")
    return parser


def measure(rank: int, port: int, options: argparse.Namespace) -> None:
    store = begin(rank, port, options.workers)
    work = Work()
    steps = {name: way(work, rank, options.workers) for name, way in WAYS.items()}
    times: Dict[str, List[List[float]]] = {name: [] for name in steps}
    for number in range(options.blocks + 1):
        for name, step in steps.items():
            found, _ = block(step, options.steps, rank == options.late_worker)
            # The first turn warms up.
            if number > 0:
                times[name].append(found)
    if rank == 0:
        store.set("report", json.dumps(times))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--late-worker", type=int, default=-1, metavar="K", help="-1 for none")
    options = parser.parse_args()
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    mp.spawn(measure, (store.port, options), nprocs=options.workers)
    times = json.loads(store.get("report"))
    result = {
        "workers": options.workers,
        "late_worker": options.late_worker,
        "milliseconds": {name: milliseconds(blocks) for name, blocks in times.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
