"""Drawing of many plots in a separate process, while the caller builds the pages.

In the caller's process, the renderer would hold Python's global interpreter lock.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.present.plots.vega_plot import Plot
from bench.records.paths import SAFE_PATH

# The task is read before anything is imported, so that the caller does not wait to write it.
_PROGRAM = f"import sys; task = sys.stdin.buffer.read(); from {__name__} import draw; draw(task)"

FEW = 8
"""The most plots that take less time to draw than a process and its renderer take to start."""


@contextmanager
def drawing(plots: Iterable[tuple[Plot, Path]]) -> Iterator[None]:
    """Write each plot's files into its folder; many of them while the body of the `with` runs.

    OSError if a file could not be written; RuntimeError, with output on stderr, if drawing failed.
    """
    listed = list(plots)
    if len(listed) <= FEW:
        for plot, folder in listed:
            plot.write(folder)
        yield
        return
    process = subprocess.Popen(  # noqa: S603 - this interpreter and module
        [sys.executable, *SAFE_PATH, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,  # Ctrl-C is for the caller
    )
    with process:
        try:
            assert process.stdin is not None, "it is a pipe"  # noqa: S101
            pickle.dump(listed, process.stdin)
            process.stdin.close()
            process.stdin = None
            yield
            answer, _ = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"drawing plots ended with exit code {process.returncode}")
    if answer:
        raise OSError(*json.loads(answer))


def draw(task: bytes) -> None:
    """Write each plot of the pickled list into its folder; print the arguments of an OSError."""
    try:
        for plot, folder in pickle.loads(task):  # noqa: S301 - from the caller
            plot.write(folder)
    except OSError as error:
        print(json.dumps([error.errno, error.strerror, error.filename]))  # noqa: T201
