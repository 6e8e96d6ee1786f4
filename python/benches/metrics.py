"""What it costs to be looked at: a call of `run.metrics()`, and a span while no profiler looks on.

    python benches/metrics.py

Prints the median of 200 rounds of 1,000 calls, in microseconds.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch

import codedgrad.torch as coded


def median(call: Callable[[], Any], calls: int = 1000, rounds: int = 200) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(times)


def main() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer = coded.prepare(model, optimizer, steps=2)
    for _ in model.run.iterations():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    phase = model.run._session.tally.state

    def span() -> None:
        with phase:
            pass

    print(f"run.metrics()                   {median(model.run.metrics):6.2f} us (limit 20)")
    print(f"a phase and its span, no trace  {median(span):6.2f} us (limit 1)")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        print(f"a phase and its span, traced    {median(span, 100, 20):6.2f} us")


if __name__ == "__main__":
    main()
