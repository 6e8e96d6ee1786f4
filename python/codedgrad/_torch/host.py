"""Tensors as memory of the host: gradients, and states as they are sent.

Whatever leaves a tensor for the native module, or comes back into one, goes through here, and where
the tensors are an accelerator's through `staging`.

Replicas are compared by digests of tensors. Those of the host's memory are hashed as bytes. Of an
accelerator's nothing but one number each is copied to the host: `codedgrad::gpu::digest_of_bits`,
which is a sum over the elements and so is computed where they lie,

    sum_i h(x_i xor i a) mod 2^64,   h(z) = y xor (y >> 32),   y = b (z xor (z >> 32)) mod 2^64

where `x_i` are the bits of element i: of formats of 16 bits those 16, of wider ones than 32 bits
each 32 of them. Tensors on an accelerator have another digest than on the CPU.
"""

from __future__ import annotations

import ctypes
import io
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, defaultdict
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np
import torch

from .. import _native
from .._core.units import Micro
from .parts import Part

FORMATS = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}

# glibc's malloc maps blocks of this size by themselves, and gives them back to the system when they
# are freed, also where it is told to keep them.
LARGE_BYTES = 32 << 20


class Room(NamedTuple):
    """Where a task's sum goes: the pieces, one behind the other, and the memory in which they lie,
    which is page-locked as a whole."""

    pieces: List[torch.Tensor]
    memory: torch.Tensor

    def between(self, start: int, end: int) -> Iterator[torch.Tensor]:
        """The pieces of some of the sum's numbers."""
        for piece in self.pieces:
            found = piece[max(start, 0) : max(end, 0)]
            if len(found):
                yield found
            start, end = start - len(piece), end - len(piece)


class Unit:
    """A unit of a task, for the way of its gradient: its number, whether it is the first or the last
    one of the task, and what its gradient is multiplied with."""

    def __init__(self, native: _native.Worker, micro: Micro, factor: float, parameters: int):
        self.number, self.begins, self.ends = micro.unit, micro.begins, micro.ends
        self.factor = factor
        self._native = native
        self._parameters = parameters

    def go_on(self, summed: bool = False) -> None:
        """Those of the unit before are all there, and this one's are handed over from now on.
        summed: the units of a task are added up, and the sum alone goes to `room`."""
        self._native.part(summed)

    def hand_over(self, first: int, arrays: List[Any]) -> None:
        """Hands over the gradients of some parameters, from one place on, in the host's memory."""
        if len(arrays) == self._parameters:
            self._native.take(arrays, self.factor)
        else:
            self._native.ready(first, arrays, self.factor)

    def room(self) -> Optional[Room]:
        """Of a task's last unit: where its sum goes; None if it is not wanted."""
        found = self._native.message()
        if found is None:
            return None
        message = tensor_at(*found)
        return Room([message], message)

    def written(self, first: int, end: int) -> None:
        """The sums of some parameters are in the room."""
        self._native.written(first, end - first)


class Decoded:
    """What was decoded of a step, times a factor.

    `write` has it written into the host's memory, for some parameters from one place on; `lies` says
    where it lies itself.
    """

    def __init__(self, native: _native.Worker, factor: float):
        self.factor = factor
        self._native = native

    def write(self, first: int, arrays: List[Any]) -> None:
        self._native.give(first, arrays, self.factor)

    def lies(self, parameters: Sequence[Part]) -> Tuple[object, torch.Tensor, List[torch.Tensor]]:
        """What keeps the numbers; all of them, in one piece; and from where on each parameter's."""
        kept = self._native.decoded()
        numbers = tensor_at(kept.address, kept.numbers)
        sources, start = [], 0
        for part in parameters:
            sources.append(numbers[start:])
            start += part.numel()
        return kept, numbers, sources


def tensor_at(address: int, count: int) -> torch.Tensor:
    """Numbers of float32 that lie somewhere, and are kept by others."""
    if not count:
        return torch.empty(0, dtype=torch.float32, device="cpu")
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


class Moved:
    """What went between a device and the host: bytes, and seconds that the trainer waited for it."""

    def __init__(self) -> None:
        self.out = self.back = 0
        self.out_seconds = self.back_seconds = 0.0

    def report(self) -> Dict[str, Dict[str, Any]]:
        return {
            "out": {"bytes": self.out, "seconds": self.out_seconds},
            "back": {"bytes": self.back, "seconds": self.back_seconds},
        }


class Transfer(ABC):
    """The way of some parameters' gradients into the host's memory, and back.

    Of a unit come `begin`, `out` for whatever gradients are final while its backward pass goes on,
    and `collect`, and `settle` after the last one of a task; of a decided step `back`.
    """

    #: Whether this way found too little memory, and another one is to be taken for further tasks.
    gave_up = False

    def __init__(self) -> None:
        self.moved = Moved()

    @property
    def early(self) -> bool:
        """Whether `out` is of use also where nothing is summed while the backward pass goes on."""
        return False

    @abstractmethod
    def begin(self, unit: Unit) -> None:
        """Before a unit is computed: goes on to it before any of it is handed over."""

    @abstractmethod
    def out(self, first: int, end: int) -> None:
        """The gradients of some parameters are final, which lie before all that were final before:
        hands them over, now or when they are in the host's memory."""

    @abstractmethod
    def collect(self) -> List[bool]:
        """The backward pass is over: hands over all gradients, or those that were not yet, now or
        when they are in the host's memory. Gives back which parameters have one."""

    def settle(self) -> Optional[bool]:
        """Waits until all is handed over. Gives back whether all of a task's numbers are finite,
        where it was looked for."""
        return None

    @abstractmethod
    def back(self, there: Sequence[bool], decoded: Decoded) -> List[Optional[torch.Tensor]]:
        """The gradients that have what was decoded, of the parameters that have one."""

    def returned(self) -> None:
        """Waits until what was decoded is not read any more."""

    def close(self) -> None:
        """Hands nothing over any more."""


class OnHost(Transfer):
    """Where the parameters are in the host's memory: gradients are handed over where they lie."""

    def __init__(self, parameters: Sequence[Part]):
        super().__init__()
        self._parameters = parameters
        self._memory = HostMemory(parameters)
        self._unit: Optional[Unit] = None

    def begin(self, unit: Unit) -> None:
        self._unit = unit
        unit.go_on()

    def out(self, first: int, end: int) -> None:
        self._hand_over(first, self._parameters[first:end])

    def collect(self) -> List[bool]:
        return self._hand_over(0, self._parameters)

    def _hand_over(self, first: int, parameters: Sequence[Part]) -> List[bool]:
        assert self._unit is not None
        arrays = [gradient_of(parameter) for parameter in parameters]
        self._unit.hand_over(first, arrays)
        return [array is not None for array in arrays]

    def back(self, there: Sequence[bool], decoded: Decoded) -> List[Optional[torch.Tensor]]:
        found = [self._memory.of(place) if has else None for place, has in enumerate(there)]
        decoded.write(0, [None if each is None else numbers(each) for each in found])
        return found


class HostMemory:
    """Memory of the host for decoded gradients of some parameters."""

    def __init__(self, parameters: Sequence[Part]):
        self._parameters = parameters
        self._kept: Dict[int, torch.Tensor] = {}

    def of(self, place: int) -> torch.Tensor:
        """The C library has that of the last unit's gradient ready, which kept would be one gradient
        more; but large blocks it asks the system for each time, at four times the cost of the
        copy."""
        like = self._parameters[place]
        if like.numel() * like.element_size() < LARGE_BYTES:
            return torch.empty(like.shape, dtype=like.dtype)
        if place not in self._kept:
            self._kept[place] = torch.empty(like.shape, dtype=like.dtype)
        return self._kept[place]


def numbers(tensor: torch.Tensor) -> Any:
    """A tensor's memory as numpy sees it: of 16-bit formats the bits."""
    if tensor.dtype is torch.float32:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy()


def gradient_of(parameter: Part) -> Any:
    """A parameter's gradient as it is handed over, if it has one."""
    gradient = parameter.grad
    return None if gradient is None else numbers(plain(gradient, parameter.dtype).contiguous())


def plain(gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A gradient as it is added up: dense, in its parameter's format; itself where it is so."""
    gradient = gradient.detach()
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    return gradient.to(dtype)


def write_state(content: Any) -> bytes:
    """A replica, as another worker is sent it."""
    buffer = io.BytesIO()
    torch.save(_on_host(content, {}), buffer)
    return buffer.getvalue()


def _on_host(content: Any, known: Dict[Tuple[Any, ...], torch.Tensor]) -> Any:
    """The same without a tensor of a device, which another worker may not have; what is the same
    memory there is `known` here, and written once."""
    if isinstance(content, torch.Tensor):
        if content.device.type == "cpu":
            return content
        place = (content.data_ptr(), content.dtype, content.shape, content.stride())
        if place not in known:
            known[place] = content.detach().cpu()
        return known[place]
    if type(content) in (dict, OrderedDict):
        return type(content)((name, _on_host(value, known)) for name, value in content.items())
    if type(content) in (list, tuple):
        return type(content)(_on_host(value, known) for value in content)
    return content


def read_state(state: bytes) -> Any:
    """What `write_state` wrote. What comes over the network is data, never code."""
    scalar = np.float64(0).__reduce__()[0]
    kinds = [type(np.dtype(name)) for name in ("f2", "f4", "f8", "i4", "i8", "u4", "u8", "?")]
    allowed: List[Any] = [Counter, OrderedDict, defaultdict, np.dtype, scalar, *kinds]
    with torch.serialization.safe_globals(allowed):
        return torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)


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


class Contents(Dict[str, int]):
    """Digests of what a process has, by contents: see `parts.content_of`."""


def digests(contents: Sequence[object], tensors: Sequence[Any]) -> Contents:
    """The digest of the tensors of each content, in their order."""
    found: Dict[str, List[Any]] = {}
    for content, tensor in zip(contents, tensors):
        found.setdefault(repr(content), []).append(tensor)
    return Contents((content, digest(several)) for content, several in sorted(found.items()))


def combined(known: Mapping[str, int]) -> int:
    """One digest of those of all contents: that itself where all ranks have the same."""
    if set(known) <= {repr(None)}:
        return known.get(repr(None), digest([]))
    found = np.array([known[content] for content in sorted(known)], dtype=np.uint64)
    return _native.digest([found.view(np.uint8)])


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
