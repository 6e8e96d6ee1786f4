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
import io
import itertools
import math
import os
import random
import sys
import threading
import warnings
import weakref
from collections import Counter, OrderedDict, defaultdict
from concurrent.futures import Future, ProcessPoolExecutor
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from . import _native
from . import _run
from ._run import (
    Apply,
    Compute,
    Event,
    Left,
    Provide,
    Replaced,
    Resync,
    RunOver,
    Settings,
    Skip,
    Step,
    Where,
    final_errors,
    layout_hash,
    seed_python,
    unit_seed,
    whole,
)
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

_FORMATS = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}

# Parameters of glibc's mallopt: the largest block that is not mapped by itself, and how much free
# memory at the end is kept.
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1

# Models that are in a run that goes on: each can be in one only.
_JOINED: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Run]]" = weakref.WeakKeyDictionary()


def _own_name(name: str) -> str:
    """A parameter's name as it is without `torch.compile`."""
    return name.replace("_orig_mod.", "")


def _modules(model: Union[nn.Module, Sequence[nn.Module]]) -> List[nn.Module]:
    several = not isinstance(model, nn.Module) and hasattr(model, "__iter__")
    # Whatever somebody has handed over: it is looked at before it is called a module.
    modules: List[Any] = list(model) if several else [model]  # type: ignore[arg-type]
    for module in modules:
        if isinstance(module, torch.optim.Optimizer):
            raise TypeError(
                f"model is {type(module).__name__}, an optimizer: the model comes first, "
                "join(model, optimizer, ..)"
            )
        if not isinstance(module, nn.Module):
            raise TypeError(f"model is {type(module).__name__}: it must be an nn.Module or a list")
    if not modules:
        raise ValueError("model is an empty list: nothing is trained")
    return modules


def _parameters(modules: Sequence[nn.Module]) -> Iterator[Tuple[str, nn.Parameter]]:
    """All parameters of some modules, with the names by which errors call them."""
    for place, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            own = _own_name(name)
            yield (own if len(modules) == 1 else f"{place}.{own}"), parameter


def _trained(modules: Sequence[nn.Module]) -> List[Tuple[str, nn.Parameter]]:
    """The parameters that take a gradient, each once, in the order of the gradient."""
    seen: Set[int] = set()
    found = []
    for name, parameter in _parameters(modules):
        if parameter.requires_grad and id(parameter) not in seen:
            seen.add(id(parameter))
            found.append((name, parameter))
    return found


def length(model: Union[nn.Module, Sequence[nn.Module]]) -> int:
    """How many numbers a gradient of a model has, which `serve` asks for: those of all parameters
    that take one, tied ones counted once.

    >>> import torch
    >>> length(torch.nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for _, parameter in _trained(_modules(model)))


class Micro(_run.Micro):
    """A unit of a batch to compute: one micro-batch. Its gradient is what `backward` leaves."""

    def generator(self, device: Union[str, torch.device] = "cpu") -> torch.Generator:
        """Random numbers that depend on the run's seed, the batch and the unit alone."""
        generator = torch.Generator(device=device)
        generator.manual_seed(self.seed)
        return generator


class GradScaler(torch.amp.GradScaler):
    """A loss scaler for fp16 whose scale is a power of two: taking it out again is exact.

    Give it to `join` in `state`. `scale(loss).backward()`, `unscale_`, `step` and `update` are
    written as with PyTorch's own. Gradients are unscaled as they are taken from each unit; a unit
    that overflows does not count where another worker has it without, and a step that nobody could
    compute is refused for everybody, so that all replicas halve the scale together.
    """

    def __init__(
        self,
        device: str = "cpu",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ):
        factors = {
            "init_scale": init_scale,
            "growth_factor": growth_factor,
            "backoff_factor": backoff_factor,
        }
        for name, value in factors.items():
            if not _is_power_of_two(value):
                raise ValueError(
                    f"{name} is {value}: it must be a power of two, or scaling would round"
                )
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._value = float(init_scale)
        self._good_steps = 0
        self._run: Optional["weakref.ref[Run]"] = None

    def _step(self) -> Optional[Step]:
        run = None if self._run is None else self._run()
        if run is None:
            raise RuntimeError(
                'the scaler is in no run: join(..., state={"scaler": scaler}) makes it part of one'
            )
        return run._step

    def scale(self, outputs: Any) -> Any:
        """A loss, or an iterable of them, times the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            return outputs * self._value
        return type(outputs)(self.scale(output) for output in outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: gradients are unscaled when they are taken."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step()`, unless there is no gradient: the step was refused."""
        step = self._step()
        if self._enabled and step is not None and step._over and not step.applied:
            return None
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Halves the scale if the step was refused; doubles it after enough good ones."""
        if not self._enabled:
            return
        if new_scale is not None:
            value = float(new_scale)
            if not _is_power_of_two(value):
                raise ValueError(f"new_scale is {value}: it must be a power of two")
            self._value = value
            return
        step = self._step()
        if step is not None and step.skipped is not None:
            self._value *= self._backoff_factor
            self._good_steps = 0
        elif step is None or step.applied:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                self._value *= self._growth_factor
                self._good_steps = 0

    def __getstate__(self) -> Dict[str, Any]:
        state: Dict[str, Any] = super().__getstate__()
        return {**state, "_run": None}

    def get_scale(self) -> float:
        """The scale now."""
        return self._value if self._enabled else 1.0

    def state_dict(self) -> Dict[str, Any]:
        """The scale, and for how long it has been good."""
        return {"scale": self._value, "good_steps": self._good_steps}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self._value = float(state_dict["scale"])
        self._good_steps = int(state_dict["good_steps"])


def _is_power_of_two(value: float) -> bool:
    return math.frexp(value)[0] == 0.5


# Gradients are handed over while the backward pass goes on in parts of at least so many numbers.
_PART = 1 << 18


class _Announcer:
    """Hands gradients over while the backward pass goes on, the last parameter's first.

    A parameter's gradient is final when it was written as often as a unit's computation writes it:
    only models in which that was once for every parameter, in the unit before, are announced. A
    gradient that is written again after it was handed over is found out when the task is submitted.
    """

    def __init__(self, run: "Run"):
        self._run = weakref.ref(run)
        parameters = run._parameters
        self._sizes = [parameter.numel() for parameter in parameters]
        # How often each was written in this unit, and whether each was written once in the last.
        self._writes = [0] * len(parameters)
        self._once = False
        # What the gradients are multiplied with; none where nothing is to be announced.
        self._factor: Optional[float] = None
        # Parameters from here on are final, and from there on handed over.
        self._final = self._handed = len(parameters)
        self._hooks = []
        for place, parameter in enumerate(parameters):
            # PyTorch's own declaration is without types.
            watch: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.append(watch(self._hook(place)))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin(self, factor: Optional[float]) -> None:
        """Before a unit is computed."""
        self._once = all(writes == 1 for writes in self._writes)
        self._writes = [0] * len(self._sizes)
        self._factor = factor if self._once else None
        self._final = self._handed = len(self._sizes)

    def end(self) -> None:
        """The unit is computed."""
        self._factor = None

    def _hook(self, place: int) -> Callable[[torch.Tensor], None]:
        this = weakref.ref(self)

        def written(_: torch.Tensor) -> None:
            announcer = this()
            if announcer is not None:
                announcer._written(place)

        return written

    def _written(self, place: int) -> None:
        self._writes[place] += 1
        if self._factor is None:
            return
        while self._final > 0 and self._writes[self._final - 1] > 0:
            self._final -= 1
        new = sum(self._sizes[self._final : self._handed])
        run = self._run()
        if run is None or new == 0 or (new < _PART and self._final > 0):
            return
        arrays = [
            run._array(parameter) for parameter in run._parameters[self._final : self._handed]
        ]
        run._native.ready(self._final, arrays, self._factor)
        self._handed = self._final


class Run(_run.Run):
    """A worker's part in a run with PyTorch: see `join`."""

    def __init__(
        self,
        modules: List[nn.Module],
        optimizers: List[torch.optim.Optimizer],
        state: Mapping[str, Any],
        where: Where,
        settings: Settings,
        overlap: Optional[bool],
    ):
        self._modules = modules
        self._optimizers = optimizers
        self._state = dict(state)
        self._named = _trained(modules)
        self._parameters = [parameter for _, parameter in self._named]
        self._scalers = [item for item in self._state.values() if isinstance(item, GradScaler)]
        # Decoded gradients go into kept tensors: fresh ones would cost four times the copy.
        self._kept: Optional[List[torch.Tensor]] = None
        # The step in which the model was last compared with what was agreed.
        self._compared = -1
        self._formats = [parameter.dtype for parameter in self._parameters]
        self._frozen = {
            name for name, parameter in _parameters(modules) if not parameter.requires_grad
        }
        self._buffers = list(_persistent_buffers(modules))
        self._versions_of_buffers: List[int] = []
        self._views: List[Any] = []
        if overlap is None:
            # Summing takes the backward pass its cores, and there is no network to wait for.
            on_cpu = all(parameter.device.type == "cpu" for parameter in self._parameters)
            overlap = not (on_cpu and where.on_this_host)
        self._overlap = overlap
        super().__init__(where, settings)
        for scaler in self._scalers:
            scaler._run = weakref.ref(self)
        this = weakref.ref(self)

        def check(*_: Any) -> None:
            run = this()
            if run is not None:
                run._check_step()

        self._hooks = [optimizer.register_step_pre_hook(check) for optimizer in optimizers]
        # The learning rates at join, until it is settled whether schedulers are in state=.
        self._rates: Optional[List[Optional[float]]] = [_rate(group) for group in self._groups()]
        self._announcer = _Announcer(self)
        for module in modules:
            for part in module.modules():
                _JOINED[part] = this

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._announcer.close()

    def _groups(self) -> List[Dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    def _applied(self, step: int) -> None:
        super()._applied(step)
        self._look_for_schedulers()

    def _look_for_schedulers(self) -> None:
        """Warns, once, of a scheduler that whoever takes over this replica's state would lack."""
        if self._rates is None:
            return
        if any(not isinstance(item, GradScaler) for item in self._state.values()):
            self._rates = None
            return
        # PyTorch's schedulers leave the rate that they begin with in what they change.
        changed = any(
            "initial_lr" in group and _rate(group) != before
            for group, before in zip(self._groups(), self._rates)
        )
        if changed:
            self._rates = None
            warnings.warn(
                "a scheduler changes the learning rate and is not in state=: a worker that takes "
                "over another's state would count its steps from 0. Join with "
                'state={"scheduler": scheduler}',
                RuntimeWarning,
                stacklevel=5,
            )

    def _check_step(self) -> None:
        """Before an optimizer's step: the gradient must be the whole batch's."""
        if self.over or (self._step is not None and self._step._over):
            return
        raise RuntimeError(
            "the gradient is not whole yet: optimizer.step() comes after `for micro in step:`, "
            "once it has ended without `break`"
        )

    def _make_micro(self, batch: int, step: int, part: Tuple[int, int, int, float]) -> Micro:
        return Micro(self, batch, step, part)

    def _seed(self, seed: int) -> None:
        super()._seed(seed)
        torch.default_generator.manual_seed(seed)
        if torch.cuda._initialized:  # asking for more would initialise it
            torch.cuda.manual_seed_all(seed)

    def _prepare(self, micro: _run.Micro) -> None:
        if micro.step != self._compared:
            self._compare_layout()
            self._compared = micro.step
        self._versions_of_buffers = [buffer._version for _, _, _, buffer in self._buffers]
        self._hide()
        useful = self._overlap and self._native.in_parts()
        self._announcer.begin(micro.coefficient / self._scale() if useful else None)

    def _compare_buffers(self, micro: _run.Micro) -> None:
        """What computing a unit writes into the model is not the same on all replicas."""
        versions = self._versions_of_buffers
        for (path, module, name, buffer), version in zip(self._buffers, versions):
            if buffer._version != version or module._buffers.get(name) is not buffer:
                raise RuntimeError(
                    f"buffer {path} of a {type(module).__name__} was written while unit "
                    f"{micro.unit} was computed: it depends on who computes what, and replicas "
                    "would drift apart. Put the module in eval(), use one without such statistics, "
                    "or register the buffer with persistent=False if it is only a cache"
                )

    def _compare_layout(self) -> None:
        """What takes a gradient must be what was agreed."""
        found = _trained(self._modules)
        if len(found) == len(self._named) and all(
            new is old for (_, new), old in zip(found, self._parameters)
        ):
            _check_optimizers(self._optimizers, self._named)
            for (name, parameter), dtype in zip(self._named, self._formats):
                if parameter.dtype is not dtype:
                    raise RuntimeError(
                        f"parameter {name} was {dtype} at join and is {parameter.dtype} now: "
                        "convert the model before it"
                    )
            return
        before, now = {name for name, _ in self._named}, {name for name, _ in found}
        changed = (sorted(before ^ now) or sorted(before))[0]
        there = {name for name, _ in _parameters(self._modules)}
        if changed in self._frozen & now:
            verb = "was frozen at join and takes a gradient"
        elif changed in now - before:
            verb = "was added"
        elif changed in there - now:
            verb = "was frozen"
        else:
            verb = "was taken away or replaced"
        raise RuntimeError(
            f"parameter {changed} {verb} after join: build the model, and freeze or unfreeze what "
            "is to be, before it. What is trained only later, or no longer, takes part from the "
            "beginning, with a learning rate of 0 meanwhile; for another set of parameters close() "
            "the run and join again"
        )

    def _collect(self, micro: _run.Micro) -> List[Any]:
        self._announcer.end()
        self._compare_buffers(micro)
        arrays = [self._array(parameter) for parameter in self._parameters]
        found = any(array is not None for array in arrays)
        if not found and not micro._nothing:
            raise RuntimeError(
                f"unit {micro.unit} of batch {micro.batch} left no gradient in any parameter: call "
                "loss.backward() in the inner loop, or micro.nothing() if it has no loss on purpose"
            )
        return arrays

    @staticmethod
    def _array(parameter: nn.Parameter) -> Any:
        """A parameter's gradient as it is handed over, if it has one."""
        gradient = parameter.grad
        if gradient is None:
            return None
        gradient = gradient.detach()
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        if gradient.dtype is not parameter.dtype:
            gradient = gradient.to(parameter.dtype)
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
        return _numbers(gradient)

    def _scale(self) -> float:
        scale = 1.0
        for scaler in self._scalers:
            scale *= scaler.get_scale()
        return scale

    def _targets(self, there: List[bool]) -> List[Any]:
        if self._kept is None:
            self._kept = [
                torch.zeros(parameter.shape, dtype=parameter.dtype)
                for parameter in self._parameters
            ]
            self._views = [_numbers(kept) for kept in self._kept]
        for parameter, kept, has in zip(self._parameters, self._kept, there):
            parameter.grad = kept if has else None
        return [view if has else None for view, has in zip(self._views, there)]

    def _hide(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _shown_gradients(self) -> Sequence[Optional[torch.Tensor]]:
        return [parameter.grad for parameter in self._parameters]

    def _save(self) -> List[bytes]:
        models = [
            {_own_name(name): value for name, value in module.state_dict().items()}
            for module in self._modules
        ]
        content = {
            "models": models,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "state": {name: item.state_dict() for name, item in self._state.items()},
        }
        return [_write_state(content)]

    def _load(self, state: Sequence[bytes]) -> None:
        content = _read_state(state[0])
        for module, found in zip(self._modules, content["models"]):
            names = {_own_name(name): name for name in module.state_dict()}
            module.load_state_dict({names.get(name, name): x for name, x in found.items()})
        for optimizer, found in zip(self._optimizers, content["optimizers"]):
            _load_optimizer(optimizer, found)
        for name, item in self._state.items():
            item.load_state_dict(content["state"][name])

    def _digest(self) -> int:
        return _digest(self._parameters)

    def _fingerprint(self) -> object:
        return [repr(_without_tensors(item.state_dict())) for item in self._state.values()]


def _rate(group: Dict[str, Any]) -> Optional[float]:
    """A parameter group's learning rate, which may be a tensor that is written in place."""
    rate = group.get("lr")
    return None if rate is None else float(rate)


def _persistent_buffers(
    modules: Sequence[nn.Module],
) -> Iterator[Tuple[str, nn.Module, str, torch.Tensor]]:
    """The buffers that belong to a model's state: path, module, name and tensor."""
    for root in modules:
        for path, module in root.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    yield _own_name(f"{path}.{name}" if path else name), module, name, buffer


def _digest(tensors: Sequence[torch.Tensor]) -> int:
    """A digest of the bytes of some tensors."""
    return _native.digest(
        [each.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for each in tensors]
    )


def _write_state(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _read_state(state: bytes) -> Any:
    """What `_write_state` wrote. What comes over the network is data, never code."""
    scalar = np.float64(0).__reduce__()[0]
    numbers = [type(np.dtype(name)) for name in ("f2", "f4", "f8", "i4", "i8", "u4", "u8", "?")]
    allowed: List[Any] = [Counter, OrderedDict, defaultdict, np.dtype, scalar, *numbers]
    with torch.serialization.safe_globals(allowed):
        return torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)


def _load_optimizer(optimizer: torch.optim.Optimizer, found: Dict[str, Any]) -> None:
    """Loads an optimizer's state as it was saved: PyTorch rounds it to the parameters' format."""
    optimizer.load_state_dict(found)
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for place, saved in found["state"].items():
        own = optimizer.state[parameters[place]]
        for name, value in saved.items():
            if isinstance(value, torch.Tensor) and own[name].dtype is not value.dtype:
                own[name] = value.clone()


def _without_tensors(state: Any) -> Any:
    """The numbers and texts of a state: what schedulers count with."""
    if isinstance(state, dict):
        return {name: _without_tensors(value) for name, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [_without_tensors(value) for value in state]
    return state if isinstance(state, (int, float, str, type(None))) else None


def _numbers(tensor: torch.Tensor) -> Any:
    """A tensor's memory as numpy sees it: of 16-bit formats the bits."""
    if tensor.dtype is torch.float32:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy()


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
    verify: int = 1,
    scheme: Optional[str] = None,
    address: Optional[str] = None,
    token: Optional[str] = None,
    keys: Union[str, "os.PathLike[str]", None] = None,
    worker: Optional[int] = None,
    patience: float = 30.0,
    overlap: Optional[bool] = None,
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
    verify: compare digests of the parameters after every so many steps; 0 = never.
    scheme: refuse a run under another scheme.
    address, token, keys, worker, patience: as for `codedgrad.loop.join`.
    overlap: hand gradients over while the backward pass goes on, where the scheme allows it; None:
        unless all parameters are on the CPU and the coordinator is called by a loopback address,
        where that takes the backward pass its cores and saves no time on the network.

    Raises ConnectionError (nobody answers), ValueError (the run trains something else, or a number
    is out of range: it names the field) and TypeError (the model cannot be replicated exactly: it
    names the module and the cure).
    """
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
    modules = _modules(model)
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
    named = _trained(modules)
    _check_model(modules, named)
    _check_optimizers(optimizers, named)
    _check_accelerate()
    others = dict(state or {})
    for name, item in others.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise TypeError(
                f"state[{name!r}] is {type(item).__name__}, which has no state_dict and "
                "load_state_dict"
            )
    shapes = [(name, list(p.shape), _FORMATS[p.dtype]) for name, p in named]
    _check_states(optimizers, others)
    kinds = [(type(each).__name__, len(each.param_groups)) for each in optimizers]
    told = (settings.reduction, settings.seed, settings.seed_all, settings.verify)
    buffers = [buffer for _, _, _, buffer in _persistent_buffers(modules)]
    frozen = [each for module in modules for each in module.parameters() if not each.requires_grad]
    where = Where(
        arrays=[(parameter.numel(), _FORMATS[parameter.dtype]) for _, parameter in named],
        layout=layout_hash("torch", shapes, kinds, told, sorted(others)),
        frozen=_digest(frozen),
        start=_digest([parameter for _, parameter in named] + buffers),
        dtype="+".join(sorted({_FORMATS[parameter.dtype] for _, parameter in named})),
        versions=f"codedgrad {_native.__version__}, torch {torch.__version__}",
        address=address,
        token=token,
        keys=keys,
        worker=worker,
        patience=patience,
        scheme=scheme,
    )
    run = Run(modules, optimizers, others, where, settings, overlap)
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


def _check_model(modules: Sequence[nn.Module], named: Sequence[Tuple[str, nn.Parameter]]) -> None:
    """Raises for what cannot be replicated exactly."""
    for place, root in enumerate(modules):
        for name, module in root.named_modules():
            joined = _JOINED.get(module)
            run = None if joined is None else joined()
            if run is not None and not run.over:
                raise RuntimeError(
                    "this model is in a run already: close() that before it joins again"
                )
            path = _own_name(name) or type(module).__name__
            if len(modules) > 1:
                path = f"{place}.{path}"
            _check_module(path, module)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        if world > 1:
            raise TypeError(
                f"torch.distributed is initialised with {world} ranks: workers of a coded run are "
                "single processes. Start each without torchrun's group, or leave out "
                "init_process_group"
            )
    if not named:
        raise TypeError("no parameter takes a gradient: nothing is trained")
    for name, parameter in named:
        if isinstance(parameter, UninitializedParameter):
            raise TypeError(f"parameter {name} has no shape yet: run the model once before join")
        if type(parameter.data) is not torch.Tensor:
            raise TypeError(
                f"parameter {name} is a {type(parameter.data).__name__}: sharded parameters cannot "
                "be coded here. Join with the whole model on each worker"
            )
        if parameter.device.type == "meta":
            raise TypeError(
                f"parameter {name} is on the meta device, where it has no numbers: give it some "
                'before join, by model.to_empty(device="cpu") and then initialising or loading it'
            )
        if parameter.device.type != "cpu":
            raise TypeError(
                f"parameter {name} is on {parameter.device}: this version codes gradients in the "
                'host\'s memory. Join with model.to("cpu")'
            )
        if parameter.dtype.is_complex:
            raise TypeError(
                f"parameter {name} is {parameter.dtype}: gradients of complex numbers are not "
                "supported. Keep torch.view_as_real of it as the parameter"
            )
        if parameter.dtype not in _FORMATS:
            raise TypeError(
                f"parameter {name} is {parameter.dtype}: gradients are summed in float32. Convert "
                "the model with .float()"
            )


def _check_accelerate() -> None:
    """Raises where Accelerate divides every loss once more."""
    state = sys.modules.get("accelerate.state")
    if state is None:
        return
    steps = state.GradientState().num_steps
    if steps > 1:
        raise TypeError(
            f"Accelerate divides every loss by gradient_accumulation_steps={steps}, and the coded "
            "step is the mean of its units already: gradients would be too small by that factor. "
            f"Create the Accelerator without it, and give join units={steps} per worker instead"
        )


def _check_module(path: str, module: nn.Module) -> None:
    if isinstance(module, nn.parallel.DistributedDataParallel):
        raise TypeError(
            f"{path} is wrapped in DistributedDataParallel, which sums gradients itself: remove "
            "the wrapper and join with the module in it"
        )
    kind = type(module).__name__
    if kind.startswith("FSDP") or kind == "FullyShardedDataParallel":
        raise TypeError(
            f"{path} is sharded ({kind}): remove the wrapper; workers of many "
            "ranks come with a later version"
        )
    if isinstance(module, _NormBase) and module.track_running_stats and module.training:
        raise TypeError(
            f"{path} is a {kind} with running statistics, which depend on who "
            "computes what: replicas would drift apart. Use GroupNorm or LayerNorm, or "
            "track_running_stats=False, or put it in eval() for good"
        )


def _check_optimizers(
    optimizers: Sequence[torch.optim.Optimizer], named: Sequence[Tuple[str, nn.Parameter]]
) -> None:
    known = {id(parameter) for _, parameter in named}
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        if isinstance(optimizer, torch.optim.LBFGS):
            raise TypeError(
                "LBFGS evaluates the loss within its step, on what one worker has: use an "
                "optimizer that takes one gradient a step"
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer is {kind}: it must be a torch.optim.Optimizer or a list")
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise TypeError(
                "SparseAdam takes sparse gradients alone, and decoded ones are dense: use Adam"
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in known:
                    raise ValueError(
                        f"{kind} has a parameter of the shape {tuple(parameter.shape)} that is not "
                        "in the model: give join all modules that are trained, as a list"
                    )


def _check_states(
    optimizers: Sequence[torch.optim.Optimizer], others: Mapping[str, Any]
) -> None:
    """Raises if what is handed over to another worker could not be read there."""
    items = [(type(each).__name__, each) for each in optimizers]
    for name, item in [*items, *((f"state[{name!r}]", item) for name, item in others.items())]:
        try:
            _read_state(_write_state(item.state_dict()))
        except Exception as error:
            said = next((line for line in str(error).splitlines() if "Unsupported" in line), "")
            said = said or str(error).partition("\n")[0]
            raise TypeError(
                f"the state_dict of {name} cannot be handed over: it holds more than tensors, "
                f"numbers, texts, lists and dictionaries: {said.strip()}"
            ) from None


class _Reader:
    """Reads the samples of a unit, in this process or in another."""

    def __init__(self, dataset: Any, collate: Callable[[List[Any]], Any]):
        self._dataset = dataset
        self._collate = collate

    def read(self, indices: List[int], seed: Optional[int]) -> Any:
        """The collated samples. What is drawn for them depends on the unit, not on the reader."""
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            seed_python(seed)
        return self._collate([self._dataset[index] for index in indices])


# The reader of a process that reads ahead.
_READER: Optional[_Reader] = None


def _begin_reading(reader: _Reader) -> None:
    global _READER
    _READER = reader
    # One that computes with several threads takes cores from the trainer.
    torch.set_num_threads(1)
    trainer = torch.multiprocessing.parent_process()
    if trainer is not None:
        # A killed trainer ends nobody; its readers would keep its connections open.
        threading.Thread(target=_end_with, args=(trainer,), daemon=True).start()


def _end_with(trainer: Any) -> None:
    trainer.join()
    os._exit(1)


def _read(indices: List[int], seed: Optional[int]) -> Any:
    assert _READER is not None
    return _READER.read(indices, seed)


class Loader:
    """The samples of units of a dataset that is indexed: `batch = loader(micro)`.

    Which samples a unit has depends on the batch and the unit alone: `micro.samples` under a
    permutation that is drawn anew for each epoch, from the run's seed. An epoch is as many whole
    batches as the dataset has; what is left over is left out.

    dataset: has `__len__` and `__getitem__`. run: what `join` gave. collate_fn: makes a batch of a
    list of samples, as a DataLoader's. num_workers: processes that read ahead, 0 to read when asked
    for. prefetch: units to read ahead, by guessing that the next batch's units are this one's.

    Raises TypeError for an IterableDataset, ValueError for a dataset smaller than a batch.
    """

    def __init__(
        self,
        dataset: Any,
        run: Run,
        *,
        collate_fn: Optional[Callable[[List[Any]], Any]] = None,
        num_workers: int = 0,
        prefetch: int = 2,
        shuffle: bool = True,
    ):
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise TypeError(
                f"{type(dataset).__name__} is an IterableDataset: who computes a unit is not known "
                "before, so samples need numbers. Use a dataset with __getitem__, or write "
                "batch(micro) as a function of micro.batch and micro.unit (shard files by unit)"
            )
        settings = run._settings
        self._batch_samples = settings.units * settings.unit_samples
        self._batches = len(dataset) // self._batch_samples
        if not self._batches:
            raise ValueError(
                f"the dataset has {len(dataset)} samples, a batch {self._batch_samples} (units x "
                "unit_samples): it must have one batch at least"
            )
        self._samples = len(dataset)
        self._reader = _Reader(dataset, collate_fn or torch.utils.data.default_collate)
        self._prefetch = whole("prefetch", prefetch, 0)
        self._shuffle = shuffle
        self._seed = settings.seed
        self._order: Tuple[int, Optional[torch.Tensor]] = (-1, None)
        self._ahead: "OrderedDict[Tuple[int, int], Future[Any]]" = OrderedDict()
        self._units: Dict[int, List[int]] = {}
        self._readers: Optional[ProcessPoolExecutor] = None
        if whole("num_workers", num_workers, 0):
            self._readers = ProcessPoolExecutor(
                num_workers,
                torch.multiprocessing.get_context(),
                initializer=_begin_reading,
                initargs=(self._reader,),
            )

    def indices(self, batch: int, samples: range) -> List[int]:
        """The dataset's indices of some samples of a batch."""
        epoch, place = divmod(batch, self._batches)
        start = place * self._batch_samples
        if not self._shuffle:
            return [start + sample for sample in samples]
        if self._order[0] != epoch:
            generator = torch.Generator()
            generator.manual_seed(unit_seed(self._seed or 0, epoch, 0, "epoch"))
            self._order = (epoch, torch.randperm(self._samples, generator=generator))
        order = self._order[1]
        assert order is not None
        return [int(index) for index in order[start + samples.start : start + samples.stop]]

    def __call__(self, micro: _run.Micro) -> Any:
        """The unit's samples, collated."""
        batch, unit = micro.batch, micro.unit
        known = self._units.setdefault(batch, [])
        known.append(unit)
        for old in [old for old in self._units if old < batch - 1]:
            del self._units[old]
        if self._readers is None:
            return self._read_here(batch, unit, micro.samples)
        future = self._ahead.pop((batch, unit), None)
        if future is None:
            future = self._submit(batch, unit, micro.samples)
        for key, samples in self._guesses(batch, unit, len(micro.samples)):
            self._ahead[key] = self._submit(*key, samples)
        # What was guessed wrong is never asked for.
        for key in [key for key in self._ahead if key[0] < batch]:
            self._ahead.pop(key).cancel()
        return future.result()

    def _seed_of(self, batch: int, unit: int) -> Optional[int]:
        return None if self._seed is None else unit_seed(self._seed, batch, unit, "loader")

    def _submit(self, batch: int, unit: int, samples: range) -> "Future[Any]":
        assert self._readers is not None
        indices, seed = self.indices(batch, samples), self._seed_of(batch, unit)
        return self._readers.submit(_read, indices, seed)

    def _read_here(self, batch: int, unit: int, samples: range) -> Any:
        """Reads as another process would, and leaves the unit's own random numbers as they are."""
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        try:
            return self._reader.read(self.indices(batch, samples), self._seed_of(batch, unit))
        finally:
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])

    def _guesses(
        self, batch: int, unit: int, samples: int
    ) -> Iterator[Tuple[Tuple[int, int], range]]:
        """The units that come next if the next batch's are this one's, or the last one's."""
        before, now = self._units.get(batch - 1, []), self._units[batch]
        rest = before[before.index(unit) + 1 :] if unit in before else []
        following = itertools.chain(
            ((batch, other) for other in rest), ((batch + 1, other) for other in before or now)
        )
        for key in itertools.islice(following, self._prefetch):
            if key not in self._ahead:
                start = key[1] * samples
                yield key, range(start, start + samples)

    def close(self) -> None:
        """Ends the processes that read ahead."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
