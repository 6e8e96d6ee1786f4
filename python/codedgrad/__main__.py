"""The program `codedgrad`: `python -m codedgrad` and the script of that name."""

from __future__ import annotations

import signal
import sys

from ._native import execute


def main() -> int:
    """Runs the command line of this process and gives back its exit status.

    The status is 0 (done), 1 (failed at work) or 2 (bad usage or input). Ctrl-C ends tools at once,
    as it ends those of the program of the same name that is built without Python; `run` and `serve`
    end what they have begun, with 130 (143 for SIGTERM).
    """
    # Python would only take a note of it while the command runs.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return execute(sys.executable or "python3", sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
