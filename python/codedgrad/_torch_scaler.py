"""A loss scaler for fp16 that all replicas turn alike."""

from __future__ import annotations

import math
import weakref
from typing import Any, Dict, Optional

import torch

from ._states import Progress, State


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
        self._followed: Optional["weakref.ref[Progress]"] = None

    def follow(self, progress: Progress) -> None:
        """The steps of a run count from now on: `join` says so."""
        self._followed = weakref.ref(progress)

    def _progress(self) -> Progress:
        progress = None if self._followed is None else self._followed()
        if progress is None:
            raise RuntimeError(
                'the scaler is in no run: join(..., state={"scaler": scaler}) makes it part of one'
            )
        return progress

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
        state = self._progress().state
        if self._enabled and state not in (State.UNDECIDED, State.APPLIED):
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
        progress = self._progress()
        # Without a run that goes on, steps are good as the optimizer takes them.
        alone = progress.over and progress.state is State.UNDECIDED
        if progress.state is State.SKIPPED:
            self._value *= self._backoff_factor
            self._good_steps = 0
        elif progress.state is State.APPLIED or alone:
            self._good_steps += 1
            if self._good_steps == self._growth_interval:
                self._value *= self._growth_factor
                self._good_steps = 0

    def __getstate__(self) -> Dict[str, Any]:
        state: Dict[str, Any] = super().__getstate__()
        return {**state, "_followed": None}

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
