"""What a worker takes of its host: memory, and the transport's processor time.

    python python/benches/worker.py resident --numbers 20e6 --log-steps 1
    python python/benches/worker.py threads --numbers 16e6 --threads 1,2,4

`resident` trains so many numbers in two workers under `uncoded` and shows for each its resident set
in gradients (of 4 bytes a number): at its peak and at its end, less what the process had before it
built the model. So the parameters count for one, and `p.grad` for one. `threads` hands gradients
over in four workers that compute nothing and shows the processor seconds of all five processes per
GB of gradient and worker, and the seconds of a step, by the number of threads that carry bytes
(`CODEDGRAD_IO_THREADS`). Every command prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from codedgrad import loop

# Processes of their own, which have nothing of the parent's memory.
CONTEXT = multiprocessing.get_context("spawn")
# The first steps touch memory for the first time.
WARM = 3


def resident_bytes(name: str) -> int:
    """A number of /proc/self/status: VmRSS, or VmHWM, the most it was."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def resident_worker(pipe: Any, where: Dict[str, Any], options: argparse.Namespace) -> None:
    import torch

    import codedgrad.torch as coded

    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = 1024
    layers = max(1, int(options.numbers) // width**2)
    # What computing anything once takes belongs to nobody: an optimizer's first step loads
    # PyTorch's compiler, of about 150 MB.
    first = torch.nn.Linear(8, 8)
    first(torch.ones(1, 8)).sum().backward()
    torch.optim.SGD(first.parameters(), 1e-4).step()
    before = resident_bytes("VmRSS")
    model = torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False) for _ in range(layers))
    )
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    run = coded.join(model, optimizer, units=4, steps=options.steps, **where)
    for step in run:
        for micro in step:
            x = torch.randn(1, width, generator=micro.generator())
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    gradient = 4 * width**2 * layers
    found = [(resident_bytes(name) - before) / gradient for name in ("VmHWM", "VmRSS")]
    pipe.send(found)


def threads_worker(pipe: Any, where: Dict[str, Any], options: argparse.Namespace) -> None:
    gradient = [np.full(int(options.numbers), 1e-3, dtype=np.float32)]
    run = loop.join(
        [gradient[0].shape], units=options.workers, steps=options.steps, verify=0, **where
    )
    cpu, times = 0.0, []
    for step in run:
        if step.index == WARM:
            cpu, times = time.process_time(), []
        began = time.perf_counter()
        for micro in step:
            assert isinstance(micro, loop.Micro)
            micro.give(gradient)
        times.append(time.perf_counter() - began)
    pipe.send((time.process_time() - cpu, statistics.median(times)))


def run(options: argparse.Namespace, work: Any, length: int, units: int) -> Tuple[List[Any], float]:
    """What the workers sent, and the coordinator's processor seconds."""
    more = {} if options.log_steps is None else {"log_steps": options.log_steps}
    served = loop.serve(
        "uncoded",
        workers=options.workers,
        units=units,
        steps=options.steps,
        length=length,
        **more,
    )
    with served as coordinator:
        cpu = time.process_time()
        pipes, workers = [], []
        for worker in range(options.workers):
            ours, theirs = CONTEXT.Pipe()
            where = {"address": coordinator.address, "token": str(coordinator.token)}
            where["worker"] = worker  # type: ignore[assignment]
            process = CONTEXT.Process(target=work, args=(theirs, where, options))
            process.start()
            pipes.append(ours)
            workers.append(process)
        found = [pipe.recv() for pipe in pipes]
        for process in workers:
            process.join()
        return found, time.process_time() - cpu


def resident(options: argparse.Namespace) -> Dict[str, Any]:
    layers = max(1, int(options.numbers) // 1024**2)
    found, _ = run(options, resident_worker, layers * 1024**2, 4)
    return {
        "gradient_bytes": 4 * layers * 1024**2,
        "peak_in_gradients": [round(peak, 2) for peak, _ in found],
        "end_in_gradients": [round(end, 2) for _, end in found],
    }


def threads(options: argparse.Namespace) -> Dict[str, Any]:
    rows = []
    for number in options.threads.split(","):
        # A process of its own for each: what it was told holds for all that it begins.
        os.environ["CODEDGRAD_IO_THREADS"] = number
        found, coordinator = run(options, threads_worker, int(options.numbers), options.workers)
        gigabytes = 4 * int(options.numbers) * (options.steps - WARM) * options.workers / 1e9
        rows.append(
            {
                "threads": int(number),
                "cpu_seconds_per_gb": round(sum(cpu for cpu, _ in found) / gigabytes, 3),
                "coordinator_cpu_seconds": round(coordinator, 2),
                "step_seconds": round(max(step for _, step in found), 4),
            }
        )
    return {"gradient_bytes": 4 * int(options.numbers), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a worker takes of its host.")
    parser.add_argument("what", choices=["resident", "threads"])
    parser.add_argument("--numbers", type=float, default=20e6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--log-steps", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--threads", default="1,2,4")
    options = parser.parse_args()
    if options.workers is None:
        options.workers = 2 if options.what == "resident" else 4
    print(json.dumps({"resident": resident, "threads": threads}[options.what](options)))


if __name__ == "__main__":
    main()
