"""A fault tolerant all-reduce step of torchft over gloo on loopback, with gloo.py's data and the same late worker.

    python benches/peers/torchft_gloo.py --workers 4 --elements 16777216
    python benches/peers/torchft_gloo.py --late-worker 3 --late-seconds 2 --timeout 1

Every worker is a replica group in a process of its own, with torchft's Manager over its ProcessGroupGloo; a lighthouse
gives the quorums, and at least workers - 1 must take part. A step is one or more tries, each of them a quorum, the
all-reduce of the buffer (filled anew before it, untimed) and the vote to commit; it ends with the try that is
committed. A late worker sleeps between the quorum and its all-reduce, where a training step computes.

Times are the longest of the workers that are not late. `seconds` is of a whole step, failed tries and quorums with it
(a quorum of other members makes the process group anew). `last_try_seconds` is from the quorum to the vote's outcome in
the try that was committed. `mean` is of `seconds`: a median hides what happens in a few of the steps. `tries` were made
for the `committed` steps. `participants` says how many steps were committed with how many workers' data, by torchft's
count, which is checked against the sum: worker k's buffer holds 2^k. Prints one JSON object.
"""

import argparse
import json
import os
import time
from collections import Counter
from datetime import timedelta

os.environ.setdefault("RUST_LOG", "error")  # else every quorum is logged, by every process

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer

from gloo import HOST, arguments, serve, summary


def measure(rank: int, port: int, lighthouse: str, options: argparse.Namespace) -> None:
    """Steps until the process is ended: a worker that stopped early would be missed in the others' quorums."""
    torch.set_num_threads(1)
    reports = dist.TCPStore(HOST, port, is_master=False)
    own, own_port = serve()
    timeout = timedelta(seconds=options.timeout)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=lambda state: None,
        state_dict=lambda: {},
        min_replica_size=options.workers - 1,
        timeout=timeout,
        rank=0,
        world_size=1,
        store_addr=HOST,
        store_port=own_port,
        lighthouse_addr=lighthouse,
        replica_id=f"worker{rank}",
        hostname=HOST,
        init_sync=False,
    )
    buffer = torch.zeros(options.elements)
    reports.set(f"ready{rank}", "")
    reports.wait([f"ready{other}" for other in range(options.workers)])
    tries = []
    reported = False
    while True:
        buffer.fill_(1 << rank)
        begin = time.monotonic()
        manager.start_quorum()
        step, count = manager.current_step(), manager.num_participants()  # the latter waits for the quorum
        ready = time.monotonic()
        if rank == options.late_worker:
            time.sleep(options.late_seconds)
        manager.allreduce(buffer, reduce_op=dist.ReduceOp.SUM).wait()
        committed = manager.should_commit()
        end = time.monotonic()
        if committed and (buffer[0] != buffer[-1] or int(buffer[0]).bit_count() != count):
            raise SystemExit(f"worker {rank}: {count} took part in step {step}, but the sum is {buffer[0]}")
        tries.append((step, ready - begin, end - ready, committed, count))
        if not reported and manager.current_step() >= options.warmup + options.steps:
            reports.set(f"report{rank}", json.dumps(tries))
            reported = True


def run(options: argparse.Namespace) -> list[list[tuple]]:
    """The tries of each worker that is not late."""
    server = LighthouseServer(bind="[::]:0", min_replicas=options.workers - 1, join_timeout_ms=options.join_timeout)
    store, port = serve()
    keys = [f"report{rank}" for rank in range(options.workers) if rank != options.late_worker]
    spawned = mp.spawn(measure, (port, server.address(), options), nprocs=options.workers, join=False)
    deadline = time.monotonic() + options.limit
    while not store.check(keys):
        spawned.join(timeout=0.2)
        if time.monotonic() > deadline:
            break
    for process in spawned.processes:
        process.kill()
    if not store.check(keys):
        raise SystemExit(f"fewer than {options.steps} steps were committed within {options.limit} s")
    server.shutdown()
    return [json.loads(store.get(key)) for key in keys]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until torchft gives an operation up")
    parser.add_argument("--join-timeout", type=int, default=100, metavar="MS", help="the lighthouse's, in milliseconds")
    parser.add_argument("--limit", type=float, default=600.0, metavar="S", help="give the whole run up after this")
    parser.add_argument("--dump", action="store_true", help="also print every worker's tries")
    options = parser.parse_args()
    reports = run(options)
    steps = range(options.warmup, options.warmup + options.steps)
    of = lambda step: [[each for each in tries if each[0] == step] for tries in reports]
    committed = [[each for tries in of(step) for each in tries if each[3]] for step in steps]
    whole = [max(sum(each[1] + each[2] for each in tries) for tries in of(step)) for step in steps]
    result = {
        "peer": "torchft",
        "workers": options.workers,
        "elements": options.elements,
        "late_seconds": options.late_seconds if options.late_worker >= 0 else 0.0,
        "timeout": options.timeout,
        "join_timeout_ms": options.join_timeout,
        "seconds": summary(whole),
        "mean": round(sum(whole) / len(whole), 6),
        "last_try_seconds": summary([max(each[2] for each in step) for step in committed]),
        "steps": options.steps,
        "tries": sum(max(len(tries) for tries in of(step)) for step in steps),
        "committed": sum(len(step) > 0 for step in committed),
        "participants": dict(Counter(count for step in committed for count in {each[4] for each in step})),
    }
    if options.dump:
        result["dump"] = reports
    print(json.dumps(result))


if __name__ == "__main__":
    main()
