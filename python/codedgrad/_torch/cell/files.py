"""Files in memory, which the ranks of a worker open on their host."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from typing import Callable, List, Tuple, TypeVar

T = TypeVar("T")


def shared(
    tell: Callable[[str], List[str]], rank: int, size: int, opened: Callable[[str], T]
) -> T:
    """A new file of zeros as each rank has `opened` it by its path.

    tell: gives back what each rank says; all ranks come here. The memory goes with the last process
    that has it open. Raises RuntimeError on all ranks where one of them does not get it.
    """
    path, trouble, file = "", "", -1
    if rank == 0:
        try:
            path, file = _made(size)
        except OSError as error:
            trouble = str(error)
    found: List[T] = []
    try:
        said = tell(f"{trouble}\n{socket.gethostname()}\n{path}")[0]
        trouble, host, path = said.split("\n", 2)
        if not trouble:
            try:
                if host != socket.gethostname():
                    raise OSError(f"rank 0 is on {host}, and this one on {socket.gethostname()}")
                found.append(opened(path))
            except (OSError, ValueError) as error:
                trouble = str(error)
        troubles = tell(trouble)
    finally:
        if file >= 0:
            os.close(file)
            with contextlib.suppress(OSError):
                if not path.startswith("/proc/"):
                    os.remove(path)
    for other, each in enumerate(troubles):
        if each:
            raise RuntimeError(
                f"rank {other} of this worker does not get {size} bytes of memory shared with the "
                f"others ({each}): all ranks of a worker are processes of one host"
            )
    return found[0]


def _made(size: int) -> Tuple[str, int]:
    """A file of this host's memory: by which path other processes open it, and as it is open here."""
    if hasattr(os, "memfd_create"):
        # Without a name: it needs no room in /dev/shm, and nothing is left after SIGKILL.
        file = os.memfd_create("codedgrad")
        path = f"/proc/{os.getpid()}/fd/{file}"
    else:
        file, path = tempfile.mkstemp(prefix="codedgrad")
    try:
        os.truncate(file, size)
        if hasattr(os, "posix_fallocate"):
            # Too little memory is an error here, and no signal later.
            os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        raise
    return path, file
