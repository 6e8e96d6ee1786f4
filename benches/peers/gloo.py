"""gloo's all-reduce over loopback TCP, as torch.distributed runs it: one process per worker, one thread each.

    python benches/peers/gloo.py --workers 4 --elements 16777216
    python benches/peers/gloo.py --workers 4 --elements 16777216 --late-worker 3 --late-seconds 2

Every worker adds up the same f32 buffer in place. A step begins at an instant agreed beforehand, on the machine's
monotonic clock, not at a barrier, and a worker's time is from its call to the return. A step's time is the longest of
the workers that are not late: what they wait for a late one is in it. Before each step, outside of the timed part, the
buffers are filled anew, worker k's with 2^k, so the sum shows whose data came in; a wrong one ends the run. Prints one
JSON object.
"""

import argparse
import json
import os
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HOST = "127.0.0.1"


def arguments(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--elements", type=int, default=1 << 24, help="f32 elements of the buffer")
    parser.add_argument("--steps", type=int, default=20, help="steps measured")
    parser.add_argument("--warmup", type=int, default=3, help="steps before, not measured")
    parser.add_argument("--late-worker", type=int, default=-1, metavar="K", help="the worker that is late, -1 for none")
    parser.add_argument("--late-seconds", type=float, default=0.0, metavar="S", help="how late it is, each step")
    return parser


def summary(times: list[float]) -> dict[str, float]:
    """The median, the least and the 95th percentile (nearest rank)."""
    ordered = sorted(times)
    tail = ordered[(95 * len(ordered) + 99) // 100 - 1]
    parts = {"median": statistics.median(ordered), "min": ordered[0], "p95": tail}
    return {name: round(value, 6) for name, value in parts.items()}


def serve() -> tuple[dist.TCPStore, int]:
    """A store for the workers to meet at, on a free port."""
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    return store, store.port


def measure(rank: int, port: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore(HOST, port, is_master=False)
    limit = timedelta(seconds=120 + options.late_seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.workers, timeout=limit)
    buffer = torch.empty(options.elements)
    pause = 0.2 + options.workers * options.elements / 4e8  # enough for all to fill their buffers
    times, overrun = [], 0.0
    for step in range(options.warmup + options.steps):
        if rank == 0:
            store.set(f"start{step}", repr(time.monotonic() + pause))
        start = float(store.get(f"start{step}"))
        buffer.fill_(1 << rank)
        time.sleep(max(0.0, start - time.monotonic()))
        if rank == options.late_worker:
            time.sleep(options.late_seconds)
        begin = time.monotonic()
        dist.all_reduce(buffer)
        end = time.monotonic()
        if not (buffer[0] == buffer[-1] == (1 << options.workers) - 1):
            raise SystemExit(f"worker {rank}: a wrong sum in step {step}: {buffer[0]}")
        if step >= options.warmup:
            times.append(end - begin)
            if rank != options.late_worker:
                overrun = max(overrun, begin - start)
    store.set(f"report{rank}", json.dumps([times, overrun]))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    options = arguments(__doc__).parse_args()
    store, port = serve()
    mp.spawn(measure, (port, options), nprocs=options.workers)
    ranks = [rank for rank in range(options.workers) if rank != options.late_worker]
    reports = [json.loads(store.get(f"report{rank}")) for rank in ranks]
    result = {
        "peer": "gloo",
        "workers": options.workers,
        "elements": options.elements,
        "late_seconds": options.late_seconds if options.late_worker >= 0 else 0.0,
        "seconds": summary([max(step) for step in zip(*(times for times, _ in reports))]),
        "steps": options.steps,
        "start_overrun": round(max(overrun for _, overrun in reports), 6),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
