"""An emulated accelerator: `import fake_device; fake_device.load()` makes `torch.device("fake")`.

Its numbers are the CPU's and its memory is none that the host can read. Operations run as late as
streams and events allow, or in another order that they allow (`settings`), so that a program that
forgets to wait computes with poison, always and not by chance; freed memory is poison too. Copies
close page-locked memory to the host until they are over. Everything is counted (`counts`).

It is one C++ file that g++ builds against the installed PyTorch's headers, once for each version of
both; `unavailable` says why that cannot be done here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, List, NamedTuple, Optional

import torch

_HERE = Path(__file__).resolve().parent
_SOURCES = ["device.cpp", "schedule.h"]
_FLAGS = ["-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-Wall", "-Wno-unknown-pragmas"]

# What `limits` takes for none.
UNLIMITED = 2**62


def unavailable() -> Optional[str]:
    """Why there is no emulated device here, if there is none."""
    if shutil.which("g++") is None:
        return "there is no g++, with which the emulated device is built"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7):
        return f"PyTorch {torch.__version__} is older than 2.7, which accelerators need"
    return None


def build() -> Path:
    """The library, built if it was not with these sources and this PyTorch."""
    key = hashlib.sha256("\0".join([torch.__version__, torch.__file__, *_FLAGS]).encode())
    for name in _SOURCES:
        key.update((_HERE / name).read_bytes())
    target = os.environ.get("CARGO_TARGET_DIR") or _HERE.parents[2] / "target"
    library = Path(target) / "fake_device" / f"{key.hexdigest()[:16]}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    root = Path(torch.__file__).parent
    include = root / "include"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / "device.so"
        command: List[str] = ["g++", *_FLAGS, str(_HERE / "device.cpp"), "-o", str(built)]
        command += [f"-isystem{include}", f"-isystem{include}/torch/csrc/api/include"]
        command += [f"-L{root}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{root}/lib"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the emulated device is not built: {done.stderr[:4000]}")
        # Others may build it at the same time.
        os.replace(built, library)
    return library


class Counts(NamedTuple):
    """What the device did, and how often the calling thread has waited for it."""

    late: int
    at_once: int
    copies: int
    waits: int


class Memory(NamedTuple):
    """Bytes that are in use, and the most since `memory` was called last."""

    device: int
    device_peak: int
    pinned: int
    pinned_peak: int


def settings(policy: str = "lazy", seed: int = 0, protect: bool = True) -> None:
    """Waits for the device, and says in which order it works from now on.

    lazy: what is waited for and what that needs, when it is waited for. hasty: whatever else may
    run runs before that. random: some of some stream's work, at any time, by `seed`. eager: at
    once. protect: page-locked memory is closed to the host while copies from or to it go on.
    """
    torch.ops.fake.settings(policy, seed, protect)


def limits(device: int = UNLIMITED, pinned: int = UNLIMITED) -> None:
    """How many bytes there are of the device's memory, and may be page-locked."""
    torch.ops.fake.limits(device, pinned)


def refuse(nth: int, least: int = 0) -> None:
    """Has the device be out of memory once: when it is asked for `least` bytes or more for the
    nth time from now (1 is the next). 0 takes that back."""
    torch.ops.fake.refuse(nth, least)


def page_lock(address: int, bytes: int) -> bool:
    """Page-locks memory that others have allocated; False where `limits` allows no more.

    It is `torch.fake.page_lock`. While this and `page_unlock` run, other threads may read the
    memory but not write it. It must not be freed between them.
    """
    return torch.ops.fake.page_lock(address, bytes)


def page_unlock(address: int) -> None:
    """Waits for the copies from and to memory that `page_lock` took, and makes it pageable."""
    torch.ops.fake.page_unlock(address)


def locked() -> int:
    """How many calls of `page_lock` are in force."""
    return torch.ops.fake.locked()


def counts() -> Counts:
    return Counts(*torch.ops.fake.counts())


def memory() -> Memory:
    return Memory(*torch.ops.fake.memory())


def fail(what: str) -> None:
    """Has the current stream's next operation fail."""
    torch.ops.fake.fail(what)


def hang() -> None:
    """Puts an operation on the current stream that does not end before `release`."""
    torch.ops.fake.hang()


def release() -> None:
    torch.ops.fake.release()


class _Device:
    """What `torch.cuda.device` is: there is one device only."""

    def __init__(self, index: Any):
        self.index = index

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _module() -> types.ModuleType:
    """What PyTorch finds as `torch.fake`."""
    module: Any = types.ModuleType("torch.fake")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.device = _Device
    module.Stream, module.Event = torch.Stream, torch.Event
    module.current_stream = lambda device=None: torch.accelerator.current_stream()
    module.synchronize = lambda device=None: torch.accelerator.synchronize()
    # Operators of PyTorch take signed numbers of 64 bits.
    module.manual_seed = module.manual_seed_all = lambda seed: torch.ops.fake.seed(
        (seed + 2**63) % 2**64 - 2**63
    )
    module.get_rng_state = lambda device="fake": torch.ops.fake.random_state()
    module.set_rng_state = lambda state, device="fake": torch.ops.fake.set_random_state(state)
    module.page_lock, module.page_unlock = page_lock, page_unlock
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    return module


def load() -> None:
    """Makes `torch.device("fake")` one that can be used."""
    if hasattr(torch, "fake"):
        return
    library = build()
    torch.utils.rename_privateuse1_backend("fake")
    torch.ops.load_library(str(library))
    torch._register_device_module("fake", _module())


@contextmanager
def alone() -> Iterator[None]:
    """For a test: the device as it begins, and as it is left to the next one; PyTorch computes in
    one thread meanwhile."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    load()
    settings()
    yield
    release()
    limits()
    refuse(0)
    settings()
    torch.set_num_threads(threads)
