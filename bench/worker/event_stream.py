"""A process that keeps stdout for its events, whatever users' files write or leave running."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TextIO


def run(main: Callable[[TextIO], None]) -> NoReturn:
    """Run the main function of a process, and end it, with exit code 1 if anything is raised.

    Args:
      main: is given the stdout that the process was started with, which writes line by line.
        Whatever else writes to stdout meanwhile, in Python or below it, goes to stderr.
    """
    code = 1
    try:
        with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as stdout:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            with contextlib.redirect_stdout(sys.stderr):  # else printed text waits in a buffer
                main(stdout)
        code = 0
    except BaseException:  # noqa: BLE001 - sys.exit in a user's file is its failure too
        traceback.print_exc()
    # All events are written. A thread that a file has started would keep the process alive, and a
    # library that crashes while it is unloaded would look like a failure.
    sys.stderr.flush()
    os._exit(code)
