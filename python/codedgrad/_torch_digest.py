"""Digests of tensors: by which replicas are compared.

Those of the host's memory are hashed as bytes. Of an accelerator's nothing but one number each is
copied to the host: `codedgrad::gpu::digest_of_bits`, which is a sum over the elements and so is
computed where they lie,

    sum_i h(x_i xor i a) mod 2^64,   h(z) = y xor (y >> 32),   y = b (z xor (z >> 32)) mod 2^64

where `x_i` are the bits of element i: of formats of 16 bits those 16, of wider ones than 32 bits
each 32 of them. Tensors on an accelerator have another digest than on the CPU.
"""

from __future__ import annotations

from typing import Sequence, Union

import numpy as np
import torch

from . import _native

# As PyTorch has integers: with a sign.
_A = 0x9E37_79B9_7F4A_7C15 - 2**64
_B = 0xD6E8_FEB8_6659_FD93 - 2**64
_LOW = 2**32 - 1
# Elements at a time, whose bits and places are kept beside them in 64 bits each.
_SLICE = 4 << 20


def digest(tensors: Sequence[torch.Tensor]) -> int:
    """A digest of the bytes of some tensors."""
    plain = [each.detach().contiguous().reshape(-1) for each in tensors]
    if all(each.device.type == "cpu" for each in plain):
        return _native.digest([each.view(torch.uint8).numpy() for each in plain])
    # They are read when all are on their way.
    sums = [_sum_of(each) for each in plain]
    numbers = np.array([int(each) % 2**64 for each in sums], dtype=np.uint64)
    return _native.digest([numbers.view(np.uint8)])


def digest_of_bits(tensor: torch.Tensor) -> int:
    """That of one tensor by the formula, wherever it lies."""
    return int(_sum_of(tensor.detach().contiguous().reshape(-1))) % 2**64


def _sum_of(flat: torch.Tensor) -> Union[int, torch.Tensor]:
    """The formula's sum for a tensor in one piece, as a number of its device."""
    if flat.device.type == "cpu" and flat.dtype is torch.float32:
        return _native.digest_of_bits(flat.numpy())
    return sum_on_device(flat)


def sum_on_device(flat: torch.Tensor) -> torch.Tensor:
    """The same by PyTorch's operators, slice by slice; with a sign."""
    size = flat.element_size()
    bits = flat.view(torch.int32 if size % 4 == 0 else torch.int16 if size == 2 else torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for start in range(0, len(bits), _SLICE):
        part = bits[start : start + _SLICE]
        mixed = part.to(torch.int64)
        # What was below 0 has ones above its own bits.
        mixed &= _LOW if size % 4 == 0 else 2 ** (8 * size) - 1
        other = torch.arange(start, start + len(part), dtype=torch.int64, device=flat.device)
        other *= _A
        mixed ^= other
        _fold(mixed, other)
        mixed *= _B
        _fold(mixed, other)
        total += mixed.sum()
    return total


def _fold(mixed: torch.Tensor, other: torch.Tensor) -> None:
    """`mixed ^= mixed >> 32` without signs; `other` is written over."""
    torch.bitwise_right_shift(mixed, 32, out=other)
    other &= _LOW
    mixed ^= other
