"""What `codedgrad.record` takes of a training loop, per bucket of gradients and step.

    python python/benches/recorder.py --layers 100 --steps 400

Two equal models are trained in turns, one of them recorded as if every parameter ended a bucket.
Prints one JSON object: the medians of the processor microseconds of a step, and the difference for
each hook that stays on a parameter.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any, List, Tuple

import torch

import codedgrad
from codedgrad._torch import passes

# The first step of a recorder has more hooks than those after it.
WARM = 5


def trained(layers: int) -> Tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step_seconds(model: Any, optimizer: Any, batch: Any) -> float:
    began = time.process_time()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    passes._BUCKET_BYTES = 1
    plain, recorded = trained(options.layers), trained(options.layers)
    batch = torch.ones(2, 8)
    times: Tuple[List[float], List[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        with codedgrad.record(*recorded, folder):
            for step in range(options.steps + WARM):
                pair = [step_seconds(*each, batch) for each in (plain, recorded)]
                if step >= WARM:
                    times[0].append(pair[0])
                    times[1].append(pair[1])
            hooks = sum(bool(each._backward_hooks) for each in recorded[0].parameters())
    without, with_it = (statistics.median(each) * 1e6 for each in times)
    found = {"hooks": hooks, "us_without": round(without, 1), "us_with": round(with_it, 1)}
    print(json.dumps({**found, "us_per_bucket": round((with_it - without) / hooks, 3)}))


if __name__ == "__main__":
    main()
