"""Which gradients are final while the backward pass goes on, for what is exchanged behind it."""

from __future__ import annotations

import weakref
from typing import Any, Callable, List, Optional, Sequence

import torch

from .parts import Part
from .staging import event_of

# Hands over the gradients of the parameters from one place to another.
Ready = Callable[[int, int], None]

# Gradients are handed over while the backward pass goes on in parts of at least so many numbers: of
# an accelerator of more, since each part costs it an event and the host a wait.
_PART = 1 << 18
_PART_OF_ACCELERATOR = 25 << 18


class Announcer:
    """Hands gradients over while the backward pass goes on, the last parameter's first.

    A parameter's gradient is final when it was written as often as a unit's computation writes it:
    only models in which that was once for every parameter, in the unit before, are announced. A
    gradient that is written again after it was handed over is found out when the task is submitted.
    """

    def __init__(self, parameters: Sequence[Part]):
        self._sizes = [parameter.numel() for parameter in parameters]
        devices = [each.device for each in parameters if each.device.type != "cpu"]
        self._device = devices[0] if devices else None
        self._part = _PART_OF_ACCELERATOR if devices else _PART
        # On which streams this unit's gradients were written.
        self._streams: List[Any] = []
        # How often each was written in this unit, and whether each was written once in the last.
        self._writes = [0] * len(parameters)
        self._once = False
        # Hands over those of some parameters; none where nothing is to be announced.
        self._ready: Optional[Ready] = None
        # Parameters from here on are final, and from there on handed over.
        self._final = self._handed = len(parameters)
        self._hooks = []
        for place, parameter in enumerate(parameters):
            # PyTorch's own declaration is without types.
            watch: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.append(watch(self._hook(place)))

    def close(self) -> None:
        """Gives back its hooks."""
        self._ready = None
        for hook in self._hooks:
            hook.remove()

    def begin(self, ready: Optional[Ready]) -> None:
        """Before a unit is computed: how gradients are handed over, if they are to be."""
        self._once = all(writes == 1 for writes in self._writes)
        self._writes = [0] * len(self._sizes)
        self._streams = []
        self._ready = ready if self._once else None
        self._final = self._handed = len(self._sizes)

    def end(self) -> None:
        """The unit is computed."""
        self._ready = None

    def _hook(self, place: int) -> Callable[[torch.Tensor], None]:
        this = weakref.ref(self)

        def written(_: torch.Tensor) -> None:
            announcer = this()
            if announcer is not None:
                announcer._written(place)

        return written

    def _written(self, place: int) -> None:
        self._writes[place] += 1
        if self._ready is None:
            return
        if self._device is not None:
            stream = torch.accelerator.current_stream(self._device)
            if stream not in self._streams:
                self._streams.append(stream)
        while self._final > 0 and self._writes[self._final - 1] > 0:
            self._final -= 1
        new = sum(self._sizes[self._final : self._handed])
        if new == 0 or (new < self._part and self._final > 0):
            return
        self._wait_for_streams()
        self._ready(self._final, self._handed)
        self._handed = self._final

    def _wait_for_streams(self) -> None:
        """Has the current stream wait for gradients that others write: FSDP2 sums those of different
        meshes on different ones."""
        if self._device is None:
            return
        current = torch.accelerator.current_stream(self._device)
        for stream in self._streams:
            if stream != current:
                current.wait_event(event_of(self._device, stream))
