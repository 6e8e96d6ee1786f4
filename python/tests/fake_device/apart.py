"""Processes of their own for what may end them, or is to be a worker.

They are forked from one that has PyTorch.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any, Callable, NamedTuple

# Nothing here takes long; whatever hangs is to be told, not waited for.
LIMIT_SECONDS = 60.0

_CONTEXT = multiprocessing.get_context("forkserver")
# The last has most of what PyTorch imports when something is first computed.
_CONTEXT.set_forkserver_preload(["codedgrad.torch", "pytest", "torch._dynamo"])


class Ended(NamedTuple):
    """How a process ended: its status, negative for a signal; what it wrote and what it gave."""

    status: int
    stderr: str
    result: Any


class Apart:
    """`function(*args)`, with the emulated device, in a process that writes into `folder`."""

    def __init__(self, folder: Path, function: Callable[..., Any], *args: Any):
        self._folder = folder
        folder.mkdir()
        given = (str(folder), function, args)
        self.process = _CONTEXT.Process(target=_child, args=given, daemon=True)
        self.process.start()

    def end(self) -> Ended:
        """Waits for its end."""
        self.process.join(LIMIT_SECONDS)
        said = (self._folder / "stderr").read_text()
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"a process hangs: {said}")
        result = self._folder / "result"
        value = pickle.loads(result.read_bytes()) if result.exists() else None
        return Ended(self.process.exitcode, said, value)

    def result(self) -> Any:
        """What the function gives back."""
        ended = self.end()
        assert ended.status == 0, ended.stderr
        return ended.result


def _child(folder: str, function: Callable[..., Any], args: Any) -> None:
    stderr = os.open(os.path.join(folder, "stderr"), os.O_WRONLY | os.O_CREAT)
    os.dup2(stderr, 2)
    import torch

    import fake_device

    torch.set_num_threads(1)
    fake_device.load()
    result = function(*args)
    Path(folder, "result").write_bytes(pickle.dumps(result))
