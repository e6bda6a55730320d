"""A guard that kills all processes of a worker, even those that left its process group.

Everything that a worker starts inherits a mark in its environment, by which it is found in /proc.
On systems other than Linux, and for processes with an empty environment, only the worker's process
group is killed. The guard is a small process that works even if its parent is killed: it waits
until its stdin is closed, which happens however the parent dies. It runs this file by its path,
which imports only the standard library, so that it starts quickly and needs little memory.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

MARK = "LOCKSTEP_WORKER"
"""Environment variable whose value differs for each guard."""

GONE_S = 5.0
"""Time to wait for killed processes; one that is blocked in a device driver does not die."""

_DISMISSED = "dismissed"


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Find the processes that were started with the mark in their environment."""
    wanted = f"{variable}={mark}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def end_all(mark: str, groups: Iterable[int], variable: str = MARK) -> None:
    """Kill process groups and all processes with the mark, and wait until they are gone."""
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    end = time.monotonic() + GONE_S
    # A process that starts during the search is found in the next iteration.
    while (left := marked(mark, variable)) and time.monotonic() < end:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


class Guard:
    """The guard of workers that are started with `environment` and registered by `watch`.

    Args:
      folders: folders to remove as well if this process is killed.
    """

    def __init__(self, folders: Iterable[str] = ()) -> None:
        self._mark = uuid.uuid4().hex
        self._groups: list[int] = []
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            [sys.executable, "-IS", __file__, self._mark, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C must reach the parent only
        )

    @property
    def environment(self) -> dict[str, str]:
        """Variables to add to the environment of a worker."""
        return {MARK: self._mark}

    def watch(self, group: int) -> None:
        """Register the process group of a worker."""
        self._groups.append(group)
        self._say(str(group))

    def end_all(self) -> None:
        """Kill the workers and everything that they started."""
        end_all(self._mark, self._groups)

    def dismiss(self) -> None:
        """End the guard, because nothing is left to guard."""
        self._say(_DISMISSED)
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._process.wait()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None, "it is a pipe"  # noqa: S101
        return self._process.stdin

    def _say(self, line: str) -> None:
        # The guard may have been killed; the parent then kills its workers itself.
        with contextlib.suppress(OSError):
            self._stdin.write(f"{line}\n")
            self._stdin.flush()


def main() -> None:
    """Wait until stdin is closed, then kill everything unless the guard was dismissed."""
    lines = sys.stdin.read().split()
    if _DISMISSED not in lines:
        end_all(sys.argv[1], map(int, lines))
        for folder in sys.argv[2:]:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
