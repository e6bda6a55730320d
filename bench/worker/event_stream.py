"""Processes whose stdout carries only events, whatever users' files write or leave running."""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TextIO

import jax


def run(main: Callable[[TextIO], None]) -> NoReturn:
    """Run a process's main function, and end the process, with exit code 1 on any exception.

    `main` receives the original stdout, line-buffered. All other output to stdout, from Python or
    from native code, goes to stderr.
    """
    code = 1
    try:
        with os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as stdout:
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
            with contextlib.redirect_stdout(sys.stderr):  # otherwise printed text waits in a buffer
                main(stdout)
        code = 0
    except BaseException:  # noqa: BLE001 - sys.exit in a user's file is its failure too
        traceback.print_exc()
    # All events are written. A thread of a user's file would keep the process alive, and a library
    # that crashes during unloading would look like a failure.
    with contextlib.suppress(Exception):  # a file may have closed it
        sys.stderr.flush()
    os._exit(code)


def answer_requests(question: Callable[[Any], Any]) -> NoReturn:
    """Answer each line of stdin with a line of stdout, and end the process.

    Empty input asks once, with None. All lines are read before a file is imported, which could
    read them.
    """
    requests = sys.stdin.read().strip().splitlines() or ["null"]

    def main(answers: TextIO) -> None:
        for request in requests:
            print(json.dumps(question(json.loads(request))), file=answers)
            jax.clear_caches()  # programs of 1,024 devices take memory

    run(main)
