"""Joining a run with a model of PyTorch: what `join` and `prepare` have in common."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

import torch
from torch import nn

from .. import _native
from .._core.joining import Called, Settings, Where, asks_for_state, layout_hash
from .._core.session import Session
from .._core.warn import warn
from .arrays import TorchArrays
from .cell.arrays import CellArrays
from .cell.ranks import Ranks
from .cell.vector import Vector, known_of
from .cell.worker import CellWhere, CellWorker
from .fsdp import Sums, fsdp_modules, reshard
from .host import FORMATS, LARGE_BYTES, Contents, digest, digests
from .model import (
    check_accelerate,
    check_model,
    check_optimizers,
    check_states,
    kinds_of,
    modules_of,
    persistent_buffers,
    trained_of,
    versions_with,
)
from .parts import Part, content_of, is_cut, local, placements_of

# Parameters of glibc's mallopt: the largest block that is not mapped by itself, and how much free
# memory at the end is kept.
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1


Models = Union[nn.Module, Sequence[nn.Module]]
Optimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer], None]


def verify_of(model: Models, verify: Optional[int]) -> int:
    """After how many steps digests are compared, if not told."""
    if verify is not None:
        return verify
    # What is trained nowhere is refused later.
    return 1 if device_of(modules_of(model)) == "cpu" else 16


def device_of(modules: Sequence[nn.Module]) -> str:
    """The type of the device on which a model is trained."""
    named = trained_of(modules)
    return named[0][1].device.type if named else "cpu"


def optimizers_of(optimizer: Any) -> List[torch.optim.Optimizer]:
    """What the user calls the optimizer, as a list; what it is, if it is none, is said when it is
    looked at."""
    if optimizer is None:
        return []
    several = not isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "__iter__")
    # Accelerate's wrapper steps the optimizer inside it.
    return [getattr(each, "optimizer", each) for each in (optimizer if several else [optimizer])]


def joined(
    model: Models,
    optimizer: Optimizers,
    settings: Settings,
    called: Called,
    *,
    state: Mapping[str, Any],
    overlap: Optional[bool],
    ranks: Optional[Ranks],
    accumulate: int = 1,
    sync: bool = False,
) -> Session:
    """Joins a run, or begins one of this process; see `codedgrad.torch.join`.

    accumulate: over how many backward passes of a unit Accelerate may take the mean. sync: begin
    with worker 0's parameters.
    """
    modules = modules_of(model)
    reshard(fsdp_modules(modules))
    named = trained_of(modules)
    device = device_of(modules)
    settings = settings.check()
    optimizers = optimizers_of(optimizer)
    check_model(modules, named, None if ranks is None else ranks.members)
    check_optimizers(optimizers, named)
    check_accelerate(accumulate)
    others = dict(state)
    for name, item in others.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise TypeError(
                f"state[{name!r}] is {type(item).__name__}, which has no state_dict and "
                "load_state_dict: give an object that has both, such as an nn.Module with a buffer"
            )
    parts = [Part(parameter) for _, parameter in named]
    shapes: List[Any] = [(name, list(p.shape), FORMATS[p.dtype]) for name, p in named]
    shapes += placements_of(named)
    check_states(optimizers, others)
    buffers = [buffer for _, _, _, buffer in persistent_buffers(modules)]
    frozen = [each for module in modules for each in module.parameters() if not each.requires_grad]
    begins_with = [parameter for _, parameter in named] + buffers
    digest_of = digest if ranks is None else _digests
    versions = f"codedgrad {_native.__version__}, torch {torch.__version__}"
    formats = "+".join(sorted({FORMATS[parameter.dtype] for _, parameter in named}))
    takes = sync and asks_for_state(called.worker, ranks is not None)
    facts: Dict[str, Any] = dict(
        called=called,
        arrays=[(part.numel(), FORMATS[part.dtype]) for part in parts],
        layout=layout_hash("torch", shapes, kinds_of(optimizers), sorted(others)),
        frozen=digest_of(frozen),
        # There is nothing to compare in a worker that takes over a state.
        start=None if takes else digest_of(begins_with),
        takes=takes,
        may_take=sync,
        dtype=formats if device == "cpu" else f"{formats} on {device}",
        versions=versions_with(versions, named[0][1].device),
    )
    _compare_steps(settings.first, optimizers)
    if optimizers and not called.alone:
        # Which optimizers import with their first step in some versions: others would wait for it.
        with contextlib.suppress(Exception):
            importlib.import_module("torch._dynamo")
    if ranks is not None:
        settings = replace(settings, part=ranks.part)
        if settings.unit_samples % ranks.parts:
            raise ValueError(
                f"unit_samples is {settings.unit_samples}, and {ranks.parts} ranks cut the samples "
                "of a unit: it counts those of all ranks, and is a multiple of their number"
            )
        ranks.meet()
        said = [pickle.loads(each) for each in ranks.gather(pickle.dumps(known_of(parts)))]
        if len({len(each) for each in said}) > 1:
            raise ValueError(
                "the ranks of this worker train different numbers of parameters, "
                f"{[len(each) for each in said]}: build the model alike in each"
            )
        cut = any(is_cut(each) for each in begins_with + frozen)
        cell = CellWorker(ranks, settings, Vector(ranks.rank, said), cut)
        sums = Sums(modules, named, ranks, settings.reduction)
        if overlap and not sums.all_by_fsdp:
            sums.close()
            raise ValueError(
                "overlap=True with mesh=, where fully_shard does not have all parameters: ranks sum "
                "the others' gradients behind the backward pass. Leave overlap= out"
            )
        where: Where = CellWhere(cell=cell, of_process=len(parts), **facts)
        early = sums.all_by_fsdp and (_is_early(where, device) if overlap is None else overlap)
        try:
            arrays: TorchArrays = CellArrays(modules, optimizers, others, cell, sums, early)
        except BaseException:
            sums.close()
            raise
    else:
        where = Where(**facts)
        early = _is_early(where, device) if overlap is None else overlap
        arrays = TorchArrays(modules, optimizers, others, early)
    try:
        session = Session(where, settings, arrays)
    except BaseException:
        arrays.ended()
        raise
    _keep_freed_memory()
    return session


def _is_early(where: Where, device: str) -> bool:
    """Whether gradients are exchanged behind the backward pass, if not told: not where summing takes
    it its cores, and there is no network to wait for."""
    return not (device == "cpu" and where.on_this_host)


def _compare_steps(first: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Warns where a resumed run would begin at another step than its optimizers have made."""
    made = [
        int(state["step"])
        for optimizer in optimizers
        for state in optimizer.state.values()
        if state.get("step") is not None
    ]
    # A loss scaler leaves some steps out.
    if made and first and abs(max(made) - first) > max(2, first // 10):
        warn(
            f"first is {first}, and the optimizer has made {max(made)} steps: first counts the steps "
            "of the optimizer, as run.index does, and neither micro-batches nor iterations of a loop"
        )


def _digests(tensors: Sequence[torch.Tensor]) -> Contents:
    """Those of what this rank has of some tensors."""
    return digests([content_of(each) for each in tensors], [local(each) for each in tensors])


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
    mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)
