"""Random numbers that depend on the run's seed, the batch and the unit, and on no worker."""

from __future__ import annotations

import hashlib
import random
import struct

import numpy


def unit_seed(seed: int, batch: int, unit: int, purpose: str = "unit", rank: int = 0) -> int:
    """The 64-bit seed of a unit's random numbers: BLAKE2b of seed, batch and unit, and of the rank
    where several cut its samples.

    Whoever computes the unit draws the same numbers.
    """
    content = struct.pack("<QQQ", seed % 2**64, batch, unit)
    # The first one draws what it would draw alone.
    content += struct.pack("<Q", rank) if rank else b""
    digest = hashlib.blake2b(content, digest_size=8, person=purpose.encode())
    return int.from_bytes(digest.digest(), "little")


def seed_python(seed: int) -> None:
    """Seeds the generators of `random` and of numpy that a process shares."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
