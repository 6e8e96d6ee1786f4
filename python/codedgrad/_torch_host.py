"""Tensors as memory of the host: gradients, digests, and states as they are sent.

Whatever leaves a tensor for the native module, or comes back into one, goes through here.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict
from typing import Any, List, Sequence

import numpy as np
import torch
from torch import nn

from . import _native

FORMATS = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def numbers(tensor: torch.Tensor) -> Any:
    """A tensor's memory as numpy sees it: of 16-bit formats the bits."""
    if tensor.dtype is torch.float32:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy()


def gradient_of(parameter: nn.Parameter) -> Any:
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
    return numbers(gradient)


def digest(tensors: Sequence[torch.Tensor]) -> int:
    """A digest of the bytes of some tensors."""
    return _native.digest(
        [each.detach().contiguous().reshape(-1).view(torch.uint8).numpy() for each in tensors]
    )


def write_state(content: Any) -> bytes:
    """A replica, as another worker is sent it."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def read_state(state: bytes) -> Any:
    """What `write_state` wrote. What comes over the network is data, never code."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(name)) for name in ("f2", "f4", "f8", "i4", "i8", "u4", "u8", "?")]
    allowed: List[Any] = [Counter, OrderedDict, defaultdict, np.dtype, scalar, *kinds]
    with torch.serialization.safe_globals(allowed):
        return torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
