"""The program `codedgrad`: `python -m codedgrad` and the script of that name."""

from __future__ import annotations

import signal
import sys

from ._native import execute


def main() -> int:
    """Runs the command line of this process and gives back its exit status.

    The status is 0 (done), 1 (failed at work) or 2 (bad usage or input). Ctrl-C ends the process at
    once, as it ends the program of the same name that is built without Python.
    """
    # Python would only take a note of it while the command runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return execute(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
