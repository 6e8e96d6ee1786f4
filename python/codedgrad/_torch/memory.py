"""Memory of the host that a device reads and writes by itself: page-locked where that can be.

Of CUDA and ROCm the runtime page-locks memory that others have allocated; other kinds of devices may
offer it as `torch.<device>.page_lock(address, bytes)`, which gives back whether it did, and
`page_unlock(address)`. What cannot be page-locked is copied all the same, while the host waits.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Optional, Tuple

import torch

from .. import _native
from .._core.warn import warn

# Page-locks, and unlocks.
_Ways = Tuple[Callable[[int, int], bool], Callable[[int], None]]


def ways_of(device: torch.device) -> Optional[_Ways]:
    """How memory is page-locked for a device, if it can be."""
    if device.type == "cpu":
        return None
    module: Any = torch.get_device_module(device)
    if device.type == "cuda":
        return _of_cuda(module, device)
    lock = getattr(module, "page_lock", None)
    return None if lock is None else (lock, module.page_unlock)


def _of_cuda(module: Any, device: torch.device) -> _Ways:
    runtime = module.cudart()

    def lock(address: int, size: int) -> bool:
        with module.device(device):
            if int(runtime.cudaHostRegister(address, size, 0)) == 0:
                return True
        # The next kernel that is started would be told this error: this one is.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)
        return False

    def unlock(address: int) -> None:
        with module.device(device):
            runtime.cudaHostUnregister(address)

    return lock, unlock


class PageLocks:
    """What is page-locked for a device: memory of the native module, which goes round and keeps its
    addresses, or some that processes share.

    The native module frees nothing that is held here: memory that its owner frees is unlocked
    first.
    """

    def __init__(self, device: torch.device, ways: Optional[_Ways]):
        self._device = device
        self._ways = ways
        # Addresses that are page-locked, with the bytes from there on.
        self._held: Dict[int, int] = {}
        # Whether some memory could not be page-locked.
        self._refused = False

    def lock(self, memory: torch.Tensor) -> None:
        """Page-locks memory, if it is not so already and can be; else warns once."""
        if self._ways is None or self._refused or not memory.numel():
            return
        self._unlock_freed()
        address, size = memory.data_ptr(), memory.nbytes
        held = any(first <= address < first + count for first, count in self._held.items())
        if held or not _native.hold(address, size):
            return
        if self._ways[0](address, size):
            self._held[address] = size
            return
        _native.let_go(address)
        self._refused = True
        warn(
            f"{size} bytes of the host's memory cannot be page-locked for {self._device.type}: "
            "gradients are copied through memory that is not, which is slower and holds the "
            "backward pass up. Raise the limit of locked memory (ulimit -l), or the host's memory"
        )

    def _unlock_freed(self) -> None:
        for address in _native.freed():
            if address in self._held:
                self._unlock(address)

    def _unlock(self, address: int) -> None:
        assert self._ways is not None, "something is held"
        self._ways[1](address)
        del self._held[address]
        _native.let_go(address)

    def close(self) -> None:
        """Unlocks all: no copy is on its way."""
        for address in list(self._held):
            self._unlock(address)
