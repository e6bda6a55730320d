"""Ends all processes of a worker: also those that left its group, and also if the front is killed.

Whatever a worker starts inherits a mark in its environment, by which it is found (on Linux; in a
process started with an empty environment, and on other systems, by the worker's process group
alone). A small process of its own waits until its stdin is closed, which the system does when the
front dies, however it dies. Run by its path, it imports the standard library only, to start at
once and to need next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

MARK = "LOCKSTEP_WORKER"
"""Variable of the environment; another value for each guard."""

GONE_S = 5.0
"""Most time to wait for killed processes: one that waits for a device cannot be killed."""

_DISMISSED = "dismissed"


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Processes that have the mark in the environment they were started with."""
    wanted = f"{variable}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end_all(mark: str, groups: Iterable[int]) -> None:
    """Kill process groups and everything that has the mark, and wait until it is gone."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    end = time.monotonic() + GONE_S
    # What starts another process while this looks is found the next time.
    while (left := marked(mark)) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


class Guard:
    """Guards workers that are started with `environment` and named by `watch`."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._groups: list[int] = []
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            [sys.executable, "-IS", __file__, self._mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the front
        )

    @property
    def environment(self) -> dict[str, str]:
        """What the environment of a worker needs beside its own."""
        return {MARK: self._mark}

    def watch(self, group: int) -> None:
        """A process group of a worker."""
        self._groups.append(group)
        self._say(str(group))

    def end_all(self) -> None:
        """End the workers and all that they started, at once."""
        end_all(self._mark, self._groups)

    def dismiss(self) -> None:
        """Nothing is left to guard."""
        self._say(_DISMISSED)
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._process.wait()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None, "it is a pipe"  # noqa: S101
        return self._process.stdin

    def _say(self, line: str) -> None:
        # Somebody may have killed the guard; the front ends its workers itself as long as it lives.
        with contextlib.suppress(OSError):
            self._stdin.write(f"{line}\n")
            self._stdin.flush()


def main() -> None:
    """Wait for the end of stdin; unless dismissed before, end everything."""
    lines = sys.stdin.read().split()
    if _DISMISSED not in lines:
        end_all(sys.argv[1], map(int, lines))


if __name__ == "__main__":
    main()
