"""How a worker's process ends, and what it leaves for whoever has started it."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from opcode import opmap
from typing import Iterator, Optional

from .. import _native

# What helps where a worker differs from the run.
_HINTS = {
    "layout": "it is of the names, shapes and formats of what is trained, of the kinds of optimizers "
    "and their groups (and whether those are fused, foreach or capturable), and the names in state=",
    "not trained": "frozen parameters must be the same on all workers",
    "cannot be cut into": "units= is the number of units of the whole job: join takes it, and prepare, "
    "which else has one for each worker (queue:m needs m for each)",
    "to begin with": "build the model from one seed on all workers, or load one checkpoint; buffers "
    "count too",
}

# A file, named by the environment, in which a worker says that starting it again would not help: in
# its first line how it came to that, then why.
_FINAL = "CODEDGRAD_FINAL"


def say_final(how: str, why: object) -> None:
    """Tells who has started this process that its error is final; the first one is told."""
    path = os.environ.get(_FINAL)
    if path:
        # It is no part of the error that it cannot be told.
        with contextlib.suppress(OSError), open(path, "x", encoding="utf-8") as file:
            file.write(f"{how}\n{why}\n")


def take_back_final() -> None:
    """What was said is not so: the run was joined after all."""
    path = os.environ.get(_FINAL)
    if path:
        with contextlib.suppress(OSError):
            os.remove(path)


_BLAMELESS = "_codedgrad_blameless"


def blameless(error: BaseException) -> BaseException:
    """The same error, for which no script is to blame: another process has gone, or a device
    computes something else."""
    setattr(error, _BLAMELESS, True)
    return error


# By what this package says that a script misuses it; kinds derived from them say something else.
_KINDS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)
# Where the native worker and NumPy are handed what the script has given, and say what is wrong with
# it. Others call what is written in C and the script's own, such as `collate_fn=torch.stack`.
_HANDS_OVER = ("_core/tasks.py", "loop.py", "_torch/arrays.py")
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def is_misuse(error: BaseException) -> bool:
    """Whether this package itself has raised `error`, which then says what is wrong with the script.

    Errors that others raise within calls of this package (a data set, PyTorch, the system) are none
    of these: the statement that has raised it is looked at.
    """
    trace = error.__traceback__
    if type(error) not in _KINDS or trace is None or hasattr(error, _BLAMELESS):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    path = os.path.abspath(code.co_filename)
    if not path.startswith(_PACKAGE):
        return False
    if code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]:
        return True
    # Arrays that are no such.
    hands_over = path[len(_PACKAGE) :] in _HANDS_OVER
    return hands_over and type(error) in (TypeError, ValueError)


def place_of(error: BaseException) -> Optional[str]:
    """Where an exception has arisen: the innermost line that is the user's, and what it is."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, *_LIBRARIES))]
    if not frames:
        return None
    frame = (own or frames)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno} {type(error).__name__}"


def shown(error: BaseException) -> str:
    """An exception in a line, whole: what helps stands last."""
    return " ".join("".join(traceback.format_exception_only(type(error), error)).split())


@contextlib.contextmanager
def final_errors() -> Iterator[None]:
    """What is wrong with the arguments of `join` is wrong in every life of a process."""
    try:
        yield
    except _native.NotNow:
        raise
    except (TypeError, ValueError) as error:
        say_final("failed", error)
        raise


def refusal(error: BaseException) -> ValueError:
    """The run refuses this worker, which it does for good: the error that says what helps."""
    hints = [f". {hint}" for word, hint in _HINTS.items() if word in str(error)]
    say_final("refused", error)
    return ValueError(f"{error}{''.join(hints)}")


class RunOver(SystemExit):
    """The run was over before this worker had any part in it: its model is not trained.

    A `SystemExit` with status 0, so that a script which is started again too late ends quietly.
    """

    def __init__(self) -> None:
        super().__init__(0)

    def __str__(self) -> str:
        return "the run was over before this worker had any part in it: its model is not trained"


class Replaced(SystemExit):
    """Another process has this worker's number now; the run goes on with that.

    A `SystemExit` with status 4, by which a supervisor knows not to start the script again.
    """

    def __init__(self, text: str = "this worker was replaced") -> None:
        super().__init__(4)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Left(SystemExit):
    """This process was told to end by SIGTERM: it has left the run, which goes on without it.

    A `SystemExit` with status 0, since it ends on purpose.
    """

    def __init__(self, text: str = "this worker has left the run") -> None:
        super().__init__(0)
        self.text = text

    def __str__(self) -> str:
        return self.text
