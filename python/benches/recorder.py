"""What `codedgrad.record` takes of a training loop.

    python python/benches/recorder.py --layers 100 --steps 400
    torchrun --nproc-per-node 2 python/benches/recorder.py --layers 24 --steps 400

Two equal models are trained in turns, one of them recorded: in one process as if every parameter
ended a bucket, under torchrun with `fully_shard` around each layer. Prints one JSON object: the
medians of the processor microseconds of a step, of all ranks together, and the difference for each
hook that stays on a parameter, or as a share of steps of 100 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any, List, Tuple

import torch
import torch.distributed as dist

import codedgrad
from codedgrad._torch import passes

# The first step of a recorder has more hooks than those after it.
WARM = 5
# Of such steps the share is told, in microseconds of each rank.
STEP = 100e3


def trained(layers: int, width: int) -> Tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    if dist.is_initialized():
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step_seconds(model: Any, optimizer: Any, batch: Any) -> float:
    began = time.process_time()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    spent = time.process_time() - began
    if not dist.is_initialized():
        return spent
    everywhere = torch.tensor([spent], dtype=torch.float64)
    dist.all_reduce(everywhere)
    return float(everywhere)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        passes._BUCKET_BYTES = 1
    plain, recorded = (trained(options.layers, options.width) for _ in range(2))
    batch = torch.ones(2, options.width)
    times: Tuple[List[float], List[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        with codedgrad.record(*recorded, folder):
            for step in range(options.steps + WARM):
                order = [0, 1] if step % 2 else [1, 0]
                pair = {at: step_seconds(*(plain, recorded)[at], batch) for at in order}
                if step >= WARM:
                    times[0].append(pair[0])
                    times[1].append(pair[1])
            hooks = sum(bool(each._backward_hooks) for each in recorded[0].parameters())
    without, with_it = (statistics.median(each) * 1e6 for each in times)
    more = statistics.median(two - one for one, two in zip(*times)) * 1e6
    found = {"us_without": round(without, 1), "us_with": round(with_it, 1), "us": round(more, 1)}
    if not dist.is_initialized():
        print(json.dumps({"hooks": hooks, **found, "us_per_bucket": round(more / hooks, 3)}))
        return
    if dist.get_rank() == 0:
        share = 100 * more / (STEP * dist.get_world_size())
        print(json.dumps({**found, "percent_of_100_ms": round(share, 3)}), flush=True)
    dist.barrier()
    # A thread of the process group may abort an interpreter that ends.
    os._exit(0)


if __name__ == "__main__":
    main()
