"""Accelerate's idea of when gradients are whole follows a run, where a script uses it.

`accelerator.sync_gradients`, and what Accelerate does by it, is true in passages that decide a step.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Optional

from ._torch_passages import Passages


def follow(passages: Passages) -> Optional[Callable[[], None]]:
    """From now on it follows these passages; gives back what ends that, none without Accelerate."""
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState.initialized.fget(None):
        return None
    # All of its objects share one dictionary: what they have in common is their class.
    kind: Any = module.GradientState
    shared = kind._shared_state

    def value(_: Any) -> bool:
        frame = sys._getframe(1)
        if frame.f_code.co_name == "sync_gradients" and frame.f_back is not None:
            # The accelerator's own name for it.
            frame = frame.f_back
        if not frame.f_globals.get("__name__", "").startswith("accelerate"):
            passages.body.asked = True
        if passages.is_open and passages.decides:
            return passages.whole
        return bool(shared.get("sync_gradients", True))

    def set_value(_: Any, to: bool) -> None:
        shared["sync_gradients"] = to

    def end() -> None:
        if kind.__dict__.get("sync_gradients") is found:
            del kind.sync_gradients

    found = kind.sync_gradients = property(value, set_value)
    return end
