"""What a coded step costs beside plain PyTorch, in one run of turns.

    python python/benches/steps.py step        # four workers: against gloo and DDP, one late or not
    python python/benches/steps.py machinery   # what the loop itself costs, by units of a step
    python python/benches/steps.py copies      # gradients in and out, against a copy of memory

`step` trains the network of `benches/peers/ddp.py`, by its two ways and by coded runs of the same
processes; each worker sleeps beside its computing, as one does that waits for its GPU. All take
turns in blocks of steps, the first step of a block and the first turn of all left out; times are
worker 0's, `after` those from a step's last backward on, and `cpu` that of all workers' threads.
`faults` are pages that workers touched for the first time: memory that was given back to the
system, and is asked for again. `late` means that the last worker sleeps ten times as long. The
ratios are of medians. `machinery` trains two numbers, with a loop of this process alone (and with a
coordinator over TCP) and with a plain one, in turns; the cost is the difference of medians.
`copies` takes and gives 33.6 MB of gradients, each in turn with `numpy.copyto` from the same arrays
or to them. One thread each. Every command prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Generator, List, Tuple

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import codedgrad.torch as coded
from codedgrad import _native

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "benches" / "peers"))
import ddp as peers  # noqa: E402

# More than any run here has: blocks end it.
ENDLESS = 1_000_000


class Coded:
    """A coded run whose steps are asked for one by one."""

    def __init__(self, work: peers.Work, where: Dict[str, Any], worker: int):
        self.work = work
        self.model = work.model()
        self.optimizer = work.optimizer(self.model)
        self.run = coded.join(
            self.model, self.optimizer, units=work.units, steps=ENDLESS, worker=worker, **where
        )
        self.steps = iter(self.run)
        self.body = 0.0

    def step(self, late: bool) -> float:
        step = next(self.steps)
        computed = time.perf_counter()
        for _ in step:
            loss = self.work.loss(self.model, late)
            loss.backward()
            computed = time.perf_counter()
        begun = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        ended = time.perf_counter()
        self.body += ended - begun
        return ended - computed

    def phases(self) -> Dict[str, float]:
        seconds: Dict[str, float] = self.run.report()["seconds"]
        # Between blocks nothing is applied.
        return {**seconds, "apply": self.body}


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step_worker(
    rank: int, port: int, options: argparse.Namespace, served: Dict[str, Dict[str, Any]]
) -> None:
    torch.set_num_threads(1)
    work = peers.Work()
    # Joined before there is a process group, which a coded worker refuses to be in.
    runs = {scheme: Coded(work, where, rank) for scheme, where in served.items()}
    store = peers.begin(rank, port, options.workers)
    ways: Dict[str, peers.Step] = {}
    for name, way in peers.WAYS.items():
        ways[name] = way(work, rank, options.workers)
    ways.update({name: run.step for name, run in runs.items()})
    times: Dict[str, List[List[float]]] = {}
    phases: Dict[str, List[Dict[str, float]]] = {}
    afters: Dict[str, List[List[float]]] = {}
    costs: Dict[str, List[List[float]]] = {}
    for turn in range(options.blocks + 1):
        for name, late in turns(options):
            begun = runs[name].phases() if name in runs else {}
            cpu, faults = time.process_time(), page_faults()
            found, after = peers.block(
                ways[name], options.steps, late and rank == options.workers - 1
            )
            shown = f"{name}, late" if late else name
            if turn > 0:
                spent = [time.process_time() - cpu, page_faults() - faults]
                costs.setdefault(shown, []).append(spent)
                times.setdefault(shown, []).append(found)
                afters.setdefault(shown, []).append(after)
                if name in runs:
                    ended = runs[name].phases()
                    passed = {part: ended[part] - begun[part] for part in begun}
                    phases.setdefault(shown, []).append(passed)
    digests = {name: f"{run.run.digest():016x}" for name, run in runs.items()}
    store.set(f"worker{rank}", json.dumps([digests, costs]))
    if rank == 0:
        store.set("report", json.dumps([times, afters, phases]))
    dist.barrier()
    for run in runs.values():
        run.run.close()
    dist.barrier()
    dist.destroy_process_group()


def turns(options: argparse.Namespace) -> List[Tuple[str, bool]]:
    """What takes turns: the way, and whether the last worker is late."""
    schemes = options.schemes.split(",")
    order = [(name, False) for name in [*peers.WAYS, *schemes]]
    if options.calm:
        return order
    order += [(scheme, True) for scheme in schemes if scheme != "uncoded"]
    if options.late_peers:
        order += [(name, True) for name in [*peers.WAYS, "uncoded"]]
    return order


def step_bench(options: argparse.Namespace) -> Dict[str, Any]:
    work = peers.Work()
    length = coded.length(work.model())
    schemes = options.schemes.split(",")
    coordinators = {
        scheme: coded.serve(
            scheme, workers=options.workers, units=work.units, steps=ENDLESS, length=length
        )
        for scheme in schemes
    }
    served = {
        scheme: {"address": coordinator.address, "token": str(coordinator.token)}
        for scheme, coordinator in coordinators.items()
    }
    store = dist.TCPStore(peers.HOST, 0, is_master=True, wait_for_workers=False)
    mp.spawn(step_worker, (store.port, options, served), nprocs=options.workers)
    times, afters, phases = json.loads(store.get("report"))
    workers = [json.loads(store.get(f"worker{rank}")) for rank in range(options.workers)]
    assert all(digests == workers[0][0] for digests, _ in workers), "workers differ"
    shown: Dict[str, Any] = {name: peers.milliseconds(blocks) for name, blocks in times.items()}
    for name, found in shown.items():
        found["after"] = peers.milliseconds(afters[name])["median"]
        # Of all workers, in the mean.
        cpu, faults = (
            sum(block[kind] for _, costs in workers for block in costs[name])
            / (options.blocks * options.steps)
            for kind in (0, 1)
        )
        found["cpu"], found["faults"] = round(1e3 * cpu, 2), round(faults)
    for name, spent in phases.items():
        shown[name]["phases"] = {
            part: round(1e3 * sum(each[part] for each in spent) / len(spent) / options.steps, 2)
            for part in spent[0]
        }
    medians = {name: found["median"] for name, found in shown.items()}
    ratios = {
        f"{name} / {peer}": round(medians[name] / medians[peer], 3)
        for name in medians
        for peer in (*peers.WAYS, name.replace(", late", ""), "uncoded")
        if name != peer and name not in peers.WAYS and peer in medians
    }
    if "auto" in schemes and "uncoded" in schemes:
        # What the planner costs is in a few steps alone.
        auto, uncoded = (
            statistics.fmean(time for block in times[name] for time in block)
            for name in ("auto", "uncoded")
        )
        ratios["auto / uncoded, means"] = round(auto / uncoded, 3)
    return {"workers": options.workers, "milliseconds": shown, "ratios": ratios}


def plain_steps(units: int) -> Generator[None, None, None]:
    """Steps of a plain loop on a model of two numbers."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(1, 1)
    while True:
        for _ in range(units):
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield


def coded_steps(units: int, where: Dict[str, Any]) -> Generator[None, None, None]:
    """The same, coded."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.ones(1, 1)
    with coded.join(model, optimizer, units=units, steps=ENDLESS, **where) as run:
        for step in run:
            for _ in step:
                model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield


def machinery_bench(options: argparse.Namespace) -> Dict[str, Any]:
    torch.set_num_threads(1)
    rows = []
    for units in (1, 8, 32):
        coordinator = coded.serve("uncoded", workers=1, units=units, steps=ENDLESS, length=2)
        where = {"address": coordinator.address, "token": str(coordinator.token)}
        loops = {
            "plain": plain_steps(units),
            "alone": coded_steps(units, {}),
            "tcp": coded_steps(units, where),
        }
        times: Dict[str, List[float]] = {name: [] for name in loops}
        for turn in range(options.blocks + 1):
            for name, steps in loops.items():
                for _ in range(options.steps):
                    begun = time.perf_counter()
                    next(steps)
                    if turn > 0:
                        times[name].append((time.perf_counter() - begun) * 1e3)
        for steps in loops.values():
            steps.close()
        coordinator.stop()
        medians = {name: statistics.median(found) for name, found in times.items()}
        row: Dict[str, Any] = {"units": units}
        row.update({name: round(median, 4) for name, median in medians.items()})
        for name in ("alone", "tcp"):
            row[f"{name} - plain"] = round(medians[name] - medians["plain"], 4)
        row["goal"] = round(0.2 + 0.02 * units, 4)
        rows.append(row)
    return {"milliseconds": rows}


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def copies_bench(options: argparse.Namespace) -> Dict[str, Any]:
    length = options.numbers // options.arrays
    rng = np.random.default_rng(1)
    arrays = [rng.random(length, dtype=np.float32) for _ in range(options.arrays)]
    kept = [np.zeros(length, dtype=np.float32) for _ in arrays]
    other = np.zeros(length * len(arrays), dtype=np.float32)
    places = [other[k * length : (k + 1) * length] for k in range(len(arrays))]

    def copy(sources: List[np.ndarray], targets: List[np.ndarray]) -> None:
        for source, target in zip(sources, targets):
            np.copyto(target, source)

    facts: Dict[str, Any] = {"units": 1, "unit_samples": 1, "micro_steps": 1, "steps": ENDLESS}
    facts.update(dtype="float32", layout=1)
    worker = _native.Worker.alone([(length, "float32") for _ in arrays], facts, 0)
    rows = []
    for factor in (1.0, 0.125):
        times: Dict[str, List[float]] = {name: [] for name in ("take", "give", "in", "out")}
        for step in range(options.steps + 5):
            found: Dict[str, float] = {}
            worker.next()
            worker.part()
            # Each goes first in half of the steps.
            for name in ("take", "in") if step % 2 else ("in", "take"):
                if name == "take":
                    found[name] = timed(lambda: worker.take(arrays, factor))
                else:
                    found[name] = timed(lambda: copy(arrays, places))
            worker.part()
            worker.submit([])
            worker.next()
            for name in ("give", "out") if step % 2 else ("out", "give"):
                if name == "give":
                    found[name] = timed(lambda: worker.give(0, kept, factor))
                else:
                    found[name] = timed(lambda: copy(places, kept))
            worker.applied()
            if step >= 5:
                for name, milliseconds in found.items():
                    times[name].append(milliseconds)
        medians = {name: statistics.median(each) for name, each in times.items()}
        row: Dict[str, float] = {"factor": factor}
        for name, copied in (("take", "in"), ("give", "out")):
            row[name] = round(medians[name], 3)
            row[f"copy {copied}"] = round(medians[copied], 3)
            row[f"{name} / copy"] = round(medians[name] / medians[copied], 3)
        rows.append(row)
    worker.close()
    return {"bytes": 4 * length * len(arrays), "arrays": len(arrays), "milliseconds": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    step = commands.add_parser("step")
    step.add_argument("--workers", type=int, default=4)
    step.add_argument("--blocks", type=int, default=8, help="turns of each")
    step.add_argument("--steps", type=int, default=9, help="steps of a block, the first left out")
    step.add_argument("--schemes", default="uncoded,groups:s=1")
    step.add_argument("--calm", action="store_true", help="no worker is late")
    step.add_argument("--late-peers", action="store_true", help="a late worker for all, too")
    machinery = commands.add_parser("machinery")
    machinery.add_argument("--blocks", type=int, default=10)
    machinery.add_argument("--steps", type=int, default=100, help="steps of a block")
    copies = commands.add_parser("copies")
    copies.add_argument("--numbers", type=int, default=8_400_000)
    copies.add_argument("--arrays", type=int, default=12)
    copies.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    bench = {"step": step_bench, "machinery": machinery_bench, "copies": copies_bench}
    print(json.dumps(bench[options.command](options), indent=1))


if __name__ == "__main__":
    main()
