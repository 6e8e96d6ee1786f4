"""DistributedDataParallel over gloo where layers sleep, as they do for a process that waits for its
GPU: what benches/overlap measures of codedgrad.

    python benches/peers/ddp_overlap.py --compute 1.0 --bucket-mb 4
    python benches/peers/ddp_overlap.py --netns ov --compute 1.0 --bucket-mb 25

Sixteen layers of equal size; a third of a step's time is the forward pass. Worker k runs in the
network namespace of that prefix and number, as netns.sh makes them. Steps are from end to end at
worker 0; prints one JSON object.
"""

import argparse
import ctypes
import json
import os
import statistics
import tempfile
import time
from typing import Any, List

import torch
import torch.distributed as dist
from torch import nn

LAYERS = 16
CLONE_NEWNET = 0x40000000


class Pace:
    """Sleeps to moments that do not shift when one is missed by a little."""

    def __init__(self) -> None:
        self.due = time.monotonic()

    def begin(self) -> None:
        self.due = time.monotonic()

    def spend(self, seconds: float) -> None:
        self.due += seconds
        left = self.due - time.monotonic()
        if left > 0:
            time.sleep(left)


class Slow(torch.autograd.Function):
    """A layer whose weight gets a gradient of one value, after a while."""

    @staticmethod
    def forward(context, x, weight, pace, seconds, value):
        pace.spend(seconds / 3)
        context.rest = (weight.shape, pace, seconds, value)
        return x + 0

    @staticmethod
    def backward(context, gradient):
        shape, pace, seconds, value = context.rest
        of_weight = torch.full(shape, value)
        pace.spend(seconds * 2 / 3)
        return gradient, of_weight, None, None, None


class Model(nn.Module):
    def __init__(self, elements: int, seconds: float, value: float) -> None:
        super().__init__()
        self.pace, self.seconds, self.value = Pace(), seconds / LAYERS, value
        of_layer = elements // LAYERS
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(of_layer)) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.pace.begin()
        for weight in self.weights:
            x = Slow.apply(x, weight, self.pace, self.seconds, self.value)
        return x.sum()


def enter(namespace: str) -> None:
    """Moves this process into a network namespace."""
    with open(f"/var/run/netns/{namespace}") as place:
        if ctypes.CDLL(None, use_errno=True).setns(place.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def work(rank: int, store: str, options: argparse.Namespace) -> List[float]:
    if options.netns:
        enter(f"{options.netns}{rank}")
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if options.netns else "lo"
    torch.set_num_threads(1)
    file = dist.FileStore(store, options.workers)
    dist.init_process_group("gloo", store=file, rank=rank, world_size=options.workers)
    late = options.factor if rank == options.late_worker else 1.0
    model = Model(options.elements, options.compute * late, float(rank + 1))
    parallel = nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=options.bucket_mb, gradient_as_bucket_view=True
    )
    x = torch.zeros(1, requires_grad=True)
    ends = []
    dist.barrier()
    for _ in range(steps_of(options)):
        model.zero_grad(set_to_none=False)
        parallel(x).backward()
        mean = (options.workers + 1) / 2
        assert model.weights[0].grad[0] == model.weights[-1].grad[-1] == mean
        ends.append(time.monotonic())
    dist.barrier()
    dist.destroy_process_group()
    return durations(ends, options)


def flags(description: str) -> argparse.ArgumentParser:
    """The flags of every script that runs this model."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--elements", type=int, default=1 << 24)
    parser.add_argument("--compute", type=float, default=1.0, help="seconds of a step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--netns", metavar="PREFIX")
    return parser


def steps_of(options: argparse.Namespace) -> int:
    """Steps to make for those that are counted: the first of these begins where one ends."""
    return options.warmup + options.steps + 1


def durations(ends: List[float], options: argparse.Namespace) -> List[float]:
    """How long the steps took that are counted."""
    return [end - begun for begun, end in zip(ends[options.warmup :], ends[options.warmup + 1 :])]


def report(steps: List[float], **what: Any) -> None:
    """Prints what was run and how long its steps took."""
    seconds = {"median": statistics.median(steps), "min": min(steps), "max": max(steps)}
    print(json.dumps({**what, "steps": len(steps), "seconds": seconds}))


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="DDP's own default is 25")
    parser.add_argument("--late-worker", type=int, default=-1, metavar="K", help="-1 for none")
    parser.add_argument("--factor", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        children = []
        for rank in range(1, options.workers):
            child = os.fork()
            if child == 0:
                work(rank, store, options)
                os._exit(0)
            children.append(child)
        steps = work(0, store, options)
        for child in children:
            os.waitpid(child, 0)
    report(
        steps,
        peer="ddp",
        bucket_mb=options.bucket_mb,
        compute=options.compute,
        late_worker=options.late_worker,
    )


if __name__ == "__main__":
    main()
