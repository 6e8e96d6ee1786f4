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
# Elements at a time, beside which their places and what is made of their bits are kept, in 64 bits
# each: half of it stays in the cache of a device, and fewer would wait for the host.
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
    of_bits = torch.int32 if size % 4 == 0 else torch.int16 if size == 2 else torch.uint8
    bits = flat.view(of_bits)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    longest = min(len(bits), _SLICE)
    places = torch.arange(longest, dtype=torch.int64, device=flat.device) * _A
    mixed = torch.empty_like(places)
    for start in range(0, len(bits), _SLICE):
        part = bits[start : start + _SLICE]
        some = mixed[: len(part)]
        # As the CPU has it: i a = start a + (i - start) a.
        torch.add(places[: len(part)], _signed(start * _A), out=some)
        _lowest(some, of_bits).bitwise_xor_(part)
        _fold(some)
        some *= _B
        _fold(some)
        total += some.sum()
    return total


def _lowest(numbers: torch.Tensor, dtype: torch.dtype, place: int = 0) -> torch.Tensor:
    """The lowest bits of each number, as many as the format has, or those above them."""
    return numbers.view(dtype).view(len(numbers), -1)[:, place]


def _fold(mixed: torch.Tensor) -> None:
    """`mixed ^= mixed >> 32` without signs: the upper halves stay as they are."""
    _lowest(mixed, torch.int32).bitwise_xor_(_lowest(mixed, torch.int32, 1))


def _signed(number: int) -> int:
    """The same modulo 2^64, as PyTorch has integers."""
    return (number + 2**63) % 2**64 - 2**63
