"""Coded training for PyTorch: five lines of a training loop change.

```python
import codedgrad.torch as coded
run = coded.join(model, optimizer, units=accum, steps=max_steps, state={"scheduler": scheduler})
for step in run:
    for micro in step:
        x, y = get_batch()
        loss = model(x, y)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); scheduler.step(); optimizer.zero_grad(set_to_none=True)
```

`for micro in step` yields the micro-batches that this worker is to compute: possibly none, since it
comes late and the step is decided, possibly several tasks' worth. When it ends, `p.grad` is the
whole batch's on every worker, the same bits. The body after it stays as it was.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import replace
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from . import _native
from ._exits import Left, Replaced, RunOver, final_errors
from ._joining import Settings, Where, layout_hash
from ._run import Run
from ._steps import Apply, Compute, Event, Provide, Resync, Skip, Step
from ._torch_arrays import Micro, TorchArrays
from ._torch_cell import CellArrays, CellWhere, CellWorker
from ._torch_checks import check_accelerate, check_model, check_optimizers, check_states
from ._torch_digest import digest
from ._torch_host import FORMATS
from ._torch_kinds import kinds_of, versions_with
from ._torch_loader import Loader
from ._torch_model import modules_of, persistent_buffers, trained_of
from ._torch_ranks import Ranks
from ._torch_scaler import GradScaler
from .loop import Coordinator, serve

__all__ = [
    "Apply",
    "Compute",
    "Coordinator",
    "Event",
    "GradScaler",
    "Left",
    "Loader",
    "Micro",
    "Provide",
    "Replaced",
    "Resync",
    "Run",
    "RunOver",
    "Skip",
    "Step",
    "join",
    "length",
    "serve",
]

# Parameters of glibc's mallopt: the largest block that is not mapped by itself, and how much free
# memory at the end is kept.
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1


def length(model: Union[nn.Module, Sequence[nn.Module]]) -> int:
    """How many numbers a gradient of a model has, which `serve` asks for: those of all parameters
    that take one, tied ones counted once.

    >>> import torch
    >>> length(torch.nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for _, parameter in trained_of(modules_of(model)))


@final_errors()
def join(
    model: Union[nn.Module, Sequence[nn.Module]],
    optimizer: Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None] = None,
    *,
    units: int,
    steps: int,
    first: int = 0,
    micro_steps: int = 1,
    unit_samples: int = 1,
    reduction: str = "mean",
    state: Optional[Mapping[str, Any]] = None,
    seed: Optional[int] = 0,
    seed_all: bool = False,
    verify: Optional[int] = None,
    scheme: Optional[str] = None,
    address: Optional[str] = None,
    token: Optional[str] = None,
    keys: Union[str, "os.PathLike[str]", None] = None,
    worker: Optional[int] = None,
    patience: float = 30.0,
    overlap: Optional[bool] = None,
    mesh: Optional[Any] = None,
    data: Union[str, Sequence[str], None] = None,
) -> Run:
    """Joins the run that the environment or `address` names. Without one: a run of this process
    alone, so that `python train.py` works: with the same bits as a run of several under an exact
    scheme whose shares are 1, 2, 4, .. units, and within rounding of any other exact one.

    model: what is trained, or a list of modules. optimizer: one or several; their state goes to
        workers that fall behind.
    units: micro-batches of a batch **of the whole job** (DDP's accumulation steps times its
        workers). steps: steps of the whole run. first: the first step that is not applied in what
        was loaded, of a resumed run.
    micro_steps: batches of a step, which schemes with a delay need. unit_samples: samples of a
        unit, for `Micro.samples` and `Loader`.
    reduction: "mean": losses are means over equal units, the gradient is divided by units *
        micro_steps. "sum": it is not divided. "tokens": losses are sums, `micro.report(loss,
        tokens)` says of how many tokens, and the gradient is divided by those of the whole batch.
    state: whatever else a replica is (schedulers, a `GradScaler`): name -> an object with
        `state_dict` and `load_state_dict`.
    seed: of every unit's random numbers, None to leave them alone; PyTorch's are seeded before each
        unit and before the body of each step, with seed_all `random`'s and numpy's too.
    verify: compare digests of the parameters after every so many steps; 0 = never. None: every
        step on the CPU, every 16th on an accelerator, which computes them itself.
    scheme: refuse a run under another scheme.
    address, token, keys, worker, patience: as for `codedgrad.loop.join`.
    overlap: hand gradients over while the backward pass goes on, where the scheme allows it; None:
        unless the parameters are on the CPU and the coordinator is called by a loopback address,
        where that takes the backward pass its cores and saves no time on the network.
    mesh: of a worker that is several processes with a device each, the `DeviceMesh` of its ranks.
        Each has the whole model and computes its part of a unit's samples, of which `unit_samples`
        counts those of all. data: the dimensions of the mesh over which they are cut; None: all.

    Raises ConnectionError (nobody answers), ValueError (the run trains something else, or a number
    is out of range: it names the field) and TypeError (the model cannot be replicated exactly: it
    names the module and the cure).
    """
    modules = modules_of(model)
    named = trained_of(modules)
    # What is trained nowhere is refused below.
    device = named[0][1].device.type if named else "cpu"
    if verify is None:
        verify = 1 if device == "cpu" else 16
    settings = Settings(
        units=units,
        steps=steps,
        first=first,
        micro_steps=micro_steps,
        unit_samples=unit_samples,
        reduction=reduction,
        seed=seed,
        seed_all=seed_all,
        verify=verify,
    ).check()
    if optimizer is None:
        optimizers = []
    elif isinstance(optimizer, torch.optim.Optimizer):
        optimizers = [optimizer]
    elif hasattr(optimizer, "__iter__"):
        optimizers = list(optimizer)
    else:
        # What it is, if it is none, is said when it is looked at.
        optimizers = [optimizer]  # type: ignore[list-item]
    # Accelerate's wrapper steps the optimizer inside it.
    optimizers = [getattr(each, "optimizer", each) for each in optimizers]
    ranks = mesh is not None
    check_model(modules, named, ranks=ranks)
    check_optimizers(optimizers, named)
    check_accelerate()
    others = dict(state or {})
    for name, item in others.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise TypeError(
                f"state[{name!r}] is {type(item).__name__}, which has no state_dict and "
                "load_state_dict"
            )
    shapes = [(name, list(p.shape), FORMATS[p.dtype]) for name, p in named]
    check_states(optimizers, others)
    buffers = [buffer for _, _, _, buffer in persistent_buffers(modules)]
    frozen = [each for module in modules for each in module.parameters() if not each.requires_grad]
    versions = f"codedgrad {_native.__version__}, torch {torch.__version__}"
    formats = "+".join(sorted({FORMATS[parameter.dtype] for _, parameter in named}))
    facts: Dict[str, Any] = dict(
        arrays=[(parameter.numel(), FORMATS[parameter.dtype]) for _, parameter in named],
        layout=layout_hash("torch", shapes, kinds_of(optimizers), sorted(others)),
        frozen=digest(frozen),
        start=digest([parameter for _, parameter in named] + buffers),
        dtype=formats if device == "cpu" else f"{formats} on {device}",
        versions=versions_with(versions, named[0][1].device),
        address=address,
        token=token,
        keys=keys,
        worker=worker,
        patience=patience,
        scheme=scheme,
    )
    if ranks:
        if overlap:
            raise ValueError("overlap=True with mesh=: a worker of several ranks cannot do it yet")
        members = Ranks(mesh, data)
        settings = replace(settings, rank=members.rank)
        if settings.unit_samples % members.size:
            raise ValueError(
                f"unit_samples is {unit_samples}, and {members.size} ranks cut the samples of a "
                "unit: it counts those of all ranks, and is a multiple of their number"
            )
        cell = CellWorker(members, settings)
        arrays: TorchArrays = CellArrays(modules, optimizers, others, cell)
        where: Where = CellWhere(cell=cell, **facts)
    else:
        where = Where(**facts)
        if overlap is None:
            # Summing takes the backward pass its cores, and there is no network to wait for.
            overlap = not (device == "cpu" and where.on_this_host)
        arrays = TorchArrays(modules, optimizers, others, overlap)
    run = Run(where, settings, arrays)
    _keep_freed_memory()
    return run


def _keep_freed_memory() -> None:
    """Has glibc keep what is freed instead of giving it back to the system.

    Every unit's gradient is freed before the next unit's is made: fetching the same memory from the
    system again and again costs as much as a small model's backward pass. Nothing is changed where
    the environment says how memory is to be kept, nor with another C library.
    """
    tuned = "GLIBC_TUNABLES" in os.environ or any(
        name.startswith("MALLOC_") for name in os.environ
    )
    if tuned:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)
