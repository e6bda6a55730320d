"""A process that says things on stdout, among files that may write there and leave threads."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn, TextIO


def run(main: Callable[[TextIO], None]) -> NoReturn:
    """Do everything that this process is for, and end it: with exit code 1 if anything is raised.

    Args:
      main: is given the stdout that the process was started with, which writes line by line. What
        anybody else writes to stdout meanwhile, on Python's level or below it, goes to stderr.
    """
    code = 1
    try:
        with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as said:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            with contextlib.redirect_stdout(sys.stderr):  # else what is printed waits in a buffer
                main(said)
        code = 0
    except BaseException:  # noqa: BLE001 - sys.exit in a user's file is its failure too
        traceback.print_exc()
    # Everything is said. A thread that a file has started would keep the process alive, and a
    # library that crashes while it is unloaded would cost what was said.
    sys.stderr.flush()
    os._exit(code)
