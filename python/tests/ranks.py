"""Workers of several ranks as processes, with a real coordinator."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

import codedgrad.torch as coded
import fake_device
import sharded
from codedgrad import loop
from codedgrad._torch.host import digest

# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 60.0
UNITS, UNIT_SAMPLES, STEPS = 4, 8, 6
SAMPLES = UNITS * UNIT_SAMPLES * 2


class Exact(nn.Module):
    """A model whose gradients are exact in float32, so that no order of sums changes them: its
    numbers are multiples of 1/16, and small."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        with torch.no_grad():
            for place, parameter in enumerate(self.parameters()):
                numbers = torch.arange(parameter.numel()).view(parameter.shape)
                parameter.copy_((numbers - place) / 16)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x)

    def loss(self, micro: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return ((self.linear(x) - y) ** 2).sum(1).mean()

    @torch.no_grad()
    def after_step(self) -> None:
        for parameter in self.parameters():
            parameter.copy_((parameter * 16).round().clamp(-64, 64) / 16)


class Usual(nn.Module):
    """A model that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.layers = nn.Sequential(
            nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.GELU(), nn.Linear(8, 2)
        )
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-0.5, 0.5, generator=generator)

    def loss(self, micro: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x + torch.rand(x.shape, generator=micro.generator())
        return F.mse_loss(self.layers(x), y)

    def after_step(self) -> None:
        pass


MODELS = {"exact": Exact, "usual": Usual}


def dataset() -> torch.utils.data.TensorDataset:
    x = torch.arange(3 * SAMPLES).view(-1, 3) * 7 % 5 - 2
    y = torch.arange(2 * SAMPLES).view(-1, 2) * 3 % 7 - 3
    return torch.utils.data.TensorDataset(x.float(), y.float())


def begun(where: Dict[str, Any], plan: Dict[str, Any], rank: int) -> Tuple[str, Any, Optional[str]]:
    """The device of a plan, its model there, and what goes wrong in this rank."""
    device = plan.get("device", "cpu")
    model: Any = MODELS[plan.get("model", "exact")]().to(device)
    mine = plan.get("rank") in (None, rank) and plan.get("worker") in (None, where.get("worker"))
    return device, model, plan.get("trouble") if mine else None


def schedule_of(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 4))


def train(
    where: Dict[str, Any], plan: Dict[str, Any], rank: int = 0, **more: Any
) -> Dict[str, Any]:
    """Trains as `plan` says; what it has come to."""
    device, model, trouble = begun(where, plan, rank)
    if trouble == "other start":
        with torch.no_grad():
            next(model.parameters()).add_(1)
    kinds = {"exact": torch.optim.SGD, "usual": torch.optim.AdamW}
    optimizer = kinds[plan.get("model", "exact")](model.parameters(), lr=2**-4)
    schedule = schedule_of(optimizer)
    steps, at = plan.get("steps", STEPS), plan.get("at", 2)
    if "notice" in plan:
        more["notice"] = plan["notice"]
    run = coded.join(
        model,
        optimizer,
        units=UNITS,
        steps=steps,
        unit_samples=UNIT_SAMPLES,
        reduction=plan.get("reduction", "mean"),
        state={"schedule": schedule},
        **where,
        **more,
    )
    loader = coded.Loader(dataset(), run)
    found: Dict[str, Any] = {"totals": [], "skipped": [], "savers": 0, "worker": run.worker}
    for step in run:
        for micro in step:
            time.sleep(plan.get("pause", 0.0))
            if trouble == "late":
                time.sleep(0.05)
            if trouble == "raises" and micro.step >= at:
                raise ZeroDivisionError("sample 17")
            loss = model.loss(micro, *(each.to(device) for each in loader(micro)))
            if plan.get("reduction", "mean") != "mean":
                loss = loss * len(micro.samples)
            micro.report(loss.detach(), float(len(micro.samples)))
            if trouble == "nan" and micro.step == at:
                loss = loss * float("nan")
            if trouble == "nothing" and micro.unit == 1:
                micro.nothing()
            else:
                loss.backward()
        if step.applied:
            optimizer.step()
        schedule.step()
        model.after_step()
        optimizer.zero_grad()
        found["totals"].append(list(step.totals))
        found["skipped"].append(step.skipped)
        found["savers"] += run.saver
        # Of this life of the process.
        if len(found["totals"]) == at + 1:
            if trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "told":
                os.kill(os.getpid(), signal.SIGTERM)
            if trouble == "other step":
                with torch.no_grad():
                    next(model.parameters()).add_(1)
            if trouble == "break":
                break
            if trouble == "finish":
                run.finish()
            if trouble == "body":
                raise ZeroDivisionError("in the body")
            if trouble == "ctrl-c":
                signal.raise_signal(signal.SIGINT)
            if trouble == "ctrl-c later":
                # Wherever it is by then: it may wait for the other ranks, or for the coordinator.
                timer = threading.Timer(plan["after"], os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
    return {
        **found,
        # Of the host's memory, wherever it was trained.
        "digest": digest([each.cpu() for each in model.parameters()]),
        "complete": run.complete,
        "over": run.over,
        "report": run.report(),
        "metrics": run.metrics(),
        "rate": schedule.get_last_lr()[0],
    }


def clipped(
    device: str,
    overlap: bool,
    accumulate: int,
    hidden: int = 32,
    rate: float = 1e-2,
) -> Dict[str, Any]:
    """What a script for DistributedDataParallel that clips gradients has come to."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, hidden), nn.GELU(), nn.Linear(hidden, 2)).to(device)
    optimizer: Any = torch.optim.AdamW(model.parameters(), rate, foreach=True)
    rows = torch.randn(96, 3)
    data = torch.utils.data.TensorDataset(rows, rows[:, :2])
    loader: Any = torch.utils.data.DataLoader(data, 4, shuffle=True, pin_memory=True)
    wrapped, optimizer, loader = coded.prepare(
        model, optimizer, loader, epochs=2, units=2, accumulate=accumulate, overlap=overlap,
        device_ids=[device], verify=0,
    )  # fmt: skip
    for _ in range(2):
        for i, (x, y) in enumerate(loader):
            assert x.is_pinned() or device == "cpu"
            loss = (wrapped(x) - y.to(device)).square().mean() / accumulate
            wrapped.run.report(loss)
            loss.backward()
            if (i + 1) % accumulate == 0:
                nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
    assert wrapped.run.complete
    found = [each.detach().cpu().tolist() for each in model.parameters()]
    return {"bits": found, "totals": list(wrapped.run.totals)}


def prepared(
    where: Dict[str, Any], plan: Dict[str, Any], rank: int = 0, **more: Any
) -> Dict[str, Any]:
    """Trains as a script for DistributedDataParallel does; what it has come to."""
    device, model, trouble = begun(where, plan, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-4)
    size = 1 if "mesh" not in more else more["mesh"].size()
    loader: Any = torch.utils.data.DataLoader(dataset(), UNIT_SAMPLES // size, shuffle=True)
    wrapped, optimizer, loader, schedule = coded.prepare(
        model,
        optimizer,
        loader,
        schedule_of(optimizer),
        units=UNITS,
        steps=STEPS,
        device_ids=[device],
        **where,
        **more,
    )
    run = wrapped.run
    while not run.over:
        for x, y in loader:
            time.sleep(0.05 if trouble == "late" else 0.0)
            loss = ((wrapped(x) - y.to(device)) ** 2).sum(1).mean()
            run.report(loss.detach())
            if trouble == "nan" and run.index == plan.get("at", 2):
                loss = loss * float("nan")
            loss.backward()
            optimizer.step()
            schedule.step()
            if run.sync_gradients:
                model.after_step()
            optimizer.zero_grad()
    return {
        "digest": digest([each.cpu() for each in model.parameters()]),
        "complete": run.complete,
        "totals": list(run.totals),
        "rate": schedule.get_last_lr()[0],
    }


def done(where: Dict[str, Any], plan: Dict[str, Any], rank: int, mesh: Any) -> Dict[str, Any]:
    """Does what a plan says; what it has come to."""
    if plan.get("sharded"):
        task = sharded.prepared if plan.get("prepared") else sharded.train
        return task(where, plan, rank, mesh=mesh)
    work = prepared if plan.get("prepared") else train
    return work(where, plan, rank, mesh=mesh, **plan.get("join", {}))


def process_of_rank(
    folder: str, name: str, rank: int, shape: List[int], where: Dict[str, Any], plan: Dict[str, Any]
) -> None:
    """What the process of a rank does."""
    base = f"{folder}/{name}"
    sys.stderr.flush()
    os.dup2(os.open(f"{base}-{rank}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    torch.set_num_threads(1)
    if plan.get("device") == "fake":
        fake_device.load()
    size = 1
    for length in shape:
        size *= length
    store = dist.FileStore(f"{base}.store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    names = tuple(plan.get("names", ["a", "b"])[: len(shape)])
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=names)
    # A process that takes the place of another has imported all by then.
    while plan.get("waits_for") and not os.path.exists(plan["waits_for"]):
        time.sleep(0.02)
    Path(f"{base}-{rank}.json").write_text(json.dumps(done(where, plan, rank, mesh)))


_SPAWN = multiprocessing.get_context("forkserver")
# What takes long to import, and is found without the paths of this process: optimizers import the
# last one when they step.
_SPAWN.set_forkserver_preload(
    [
        "codedgrad.torch",
        "torch.distributed.device_mesh",
        "torch.distributed.fsdp",
        "torch._dynamo",
    ]
)


class Cells:
    """A coordinator, and workers of several ranks each."""

    def __init__(self, folder: Path, scheme: str, workers: int, *shape: int, **plan: Any):
        self.folder = folder
        self.workers, self.shape, self.plan = workers, list(shape), plan
        self.ranks = 1
        for length in shape:
            self.ranks *= length
        kind = MODELS[plan.get("model", "exact")]
        model = sharded.built(plan, None) if plan.get("sharded") else kind()
        # Without a scheme each worker trains by itself.
        self.coordinator: Any = None
        if scheme:
            self.coordinator = loop.serve(
                scheme,
                workers=workers,
                units=UNITS,
                unit_samples=UNIT_SAMPLES,
                steps=plan.get("steps", STEPS),
                length=coded.length(model),
                max_wait=LIMIT_SECONDS,
                **plan.pop("serve", {}),
            )
        self.processes: Dict[str, List[Any]] = {}
        for worker in range(workers):
            self.start(worker)

    def start(self, worker: int, name: Optional[str] = None, **plan: Any) -> None:
        """Starts the ranks of a worker."""
        where: Dict[str, Any] = {}
        if self.coordinator is not None:
            where = {
                "address": self.coordinator.address,
                "token": self.coordinator.token,
                "worker": worker,
            }
        name = str(worker) if name is None else name
        told = {**self.plan, **plan}
        arguments = [
            (str(self.folder), name, rank, self.shape, where, told) for rank in range(self.ranks)
        ]
        self.processes[name] = [
            _SPAWN.Process(target=process_of_rank, args=each, daemon=True) for each in arguments
        ]
        for process in self.processes[name]:
            process.start()

    def __enter__(self) -> "Cells":
        return self

    def __exit__(self, *_: object) -> None:
        for processes in self.processes.values():
            for process in processes:
                process.kill()
        if self.coordinator is not None:
            self.coordinator.stop()

    def stop(self, worker: int) -> None:
        """Kills the ranks of a worker."""
        for process in self.processes[str(worker)]:
            process.kill()
            process.join()

    def statuses(self, name: str) -> List[int]:
        """How the ranks of a worker have ended; none may take long."""
        deadline = time.monotonic() + LIMIT_SECONDS
        for rank, process in enumerate(self.processes[name]):
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode is not None, f"rank {rank} of {name} hangs: {self.said()}"
        return [process.exitcode for process in self.processes[name]]

    def said(self) -> Dict[str, str]:
        """What the ranks have said on stderr."""
        return {path.stem: path.read_text() for path in sorted(self.folder.glob("*.err"))}

    def results(self, name: str) -> List[Dict[str, Any]]:
        """What the ranks of a worker have come to, who have all ended well."""
        assert set(self.statuses(name)) == {0}, self.said()
        paths = [self.folder / f"{name}-{rank}.json" for rank in range(self.ranks)]
        return [json.loads(path.read_text()) for path in paths]
