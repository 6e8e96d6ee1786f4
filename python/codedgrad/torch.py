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

import os
from typing import Any, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from ._core.exits import Left, Replaced, RunOver, final_errors
from ._core.joining import Called, Settings, notice_of
from ._core.run import Membership, Run, arrays_of
from ._core.steps import Apply, Compute, Event, Provide, Resync, Skip, Step
from ._torch.arrays import Micro
from ._torch.cell.ranks import Ranks
from ._torch.joining import joined, verify_of
from ._torch.model import modules_of, trained_of
from ._torch.outputs import CodedModule
from ._torch.prepare import PreparedRun, prepare
from ._torch.samples import Loader, PreparedLoader
from ._torch.watch import GradScaler
from .loop import Coordinator, serve

__all__ = [
    "Apply",
    "CodedModule",
    "Compute",
    "Coordinator",
    "Event",
    "GradScaler",
    "Left",
    "Loader",
    "Micro",
    "PreparedLoader",
    "PreparedRun",
    "Provide",
    "Replaced",
    "Resync",
    "Run",
    "RunOver",
    "Skip",
    "Step",
    "clip_grad_norm_",
    "join",
    "length",
    "prepare",
    "serve",
]


def length(model: Union[nn.Module, Sequence[nn.Module]]) -> int:
    """How many numbers a gradient of a model has, which `serve` asks for: those of all parameters
    that take one, tied ones counted once.

    >>> import torch
    >>> length(torch.nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for _, parameter in trained_of(modules_of(model)))


def clip_grad_norm_(run: Membership, max_norm: float) -> float:
    """Scales the decoded gradient of a run so that its 2-norm is `max_norm` at most.

    Gives back the norm that it had: the same float on all ranks of all workers, where PyTorch's
    `clip_grad_norm_` may differ in the last bit between unlike nodes and raises for parameters of
    several meshes. All ranks of a worker call it. Squares are added in float64, each part once.
    """
    arrays: Any = arrays_of(run)
    found: float = arrays.clip(max_norm)
    return found


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
    notice: Optional[float] = None,
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
    state: other state of the replica (schedulers, a `GradScaler`), as a dict of names to objects
        with `state_dict` and `load_state_dict`.
    seed: of every unit's random numbers, None to leave them alone; PyTorch's are seeded before each
        unit and before the body of each step, with seed_all `random`'s and numpy's too.
    verify: compare digests of the parameters after every so many steps; 0 = never. None: every
        step on the CPU, every 16th on an accelerator, which computes them itself.
    scheme: refuse a run under another scheme.
    address, token, keys, worker, patience, notice: as for `codedgrad.loop.join`.
    overlap: hand gradients over during the backward pass, where the scheme allows it. None: on,
        unless parameters are on the CPU and the coordinator's address is loopback: there it would
        take cores from the backward pass and save no time on the network.
    mesh: of a worker that is several processes with a device each, the `DeviceMesh` of its ranks.
        Each has the whole model, or a part of it by FSDP2, tensor or expert parallelism, and
        computes its part of a unit's samples, of which `unit_samples` counts those of all.
    data: the dimensions of the mesh over which samples are cut; ranks that differ in another one
        compute the same samples. None: all. Say it where the model is cut and the mesh has several.

    Raises ConnectionError (no coordinator answers), ValueError (the run trains something else, or a number
    is out of range: it names the field) and TypeError (the model cannot be replicated exactly: it
    names the module and the cure).
    """
    called = Called(address, token, keys, worker, patience, scheme, notice_of(notice))
    session = joined(
        model,
        optimizer,
        Settings(
            units=units,
            steps=steps,
            first=first,
            micro_steps=micro_steps,
            unit_samples=unit_samples,
            reduction=reduction,
            seed=seed,
            seed_all=seed_all,
            verify=verify_of(model, verify),
        ),
        called.check_launcher(mesh is not None),
        state=state or {},
        overlap=overlap,
        ranks=None if mesh is None else Ranks(mesh, data),
    )
    return Run(session)
