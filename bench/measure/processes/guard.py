"""A guard that starts a worker, and ends it with all its descendants, even if the front is killed.

The guard is a small process between the two: see docs/design/processes.md. It writes the worker's
process id and exit code to a socket, and ends everything once the front closes its end. On Linux it
is the subreaper (prctl(2)) of the worker's descendants; elsewhere, only the worker's process group
is killed. A guard runs this file by its path, which imports only the standard library, so that it
starts quickly and needs little memory.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

GONE_S = 5.0
"""Time to wait for killed processes; one that is blocked in a device driver does not die."""

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


def _kill(processes: Iterable[int]) -> None:
    """Kill processes, or process groups, whose ids are negative."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


class Guard:
    """The guard of a worker; a context that ends both, with everything that the worker started.

    `environment` is the worker's whole environment, None for that of this process; `options` are
    further arguments of subprocess.Popen. Raises OSError if the worker cannot be started.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        self._code: int | None = None
        self._ended = threading.Event()
        self._channel, far = socket.socketpair()
        with far:
            self.process = subprocess.Popen(  # noqa: S603 (our own command)
                [sys.executable, "-IS", __file__, str(far.fileno()), *command],
                env=environment,
                start_new_session=True,  # Ctrl-C must reach the front only
                pass_fds=(far.fileno(), *options.pop("pass_fds", ())),
                **options,
            )
        self._lines = self._channel.makefile("rb")
        started = self._lines.readline().decode(errors="replace").strip()
        if not started.isdigit():
            with self.process:
                self._close()
            raise OSError(started or f"{command[0]} was not started: its guard has ended")
        self.pid = int(started)
        """The worker's process id."""
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def code(self, timeout_s: float | None = None) -> int | None:
        """Wait for the worker's exit code, negative for a signal; None if it is still running."""
        self._ended.wait(timeout_s)
        return self._code

    def kill(self) -> None:
        """Kill the worker and everything that it started; later calls do nothing."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        self._listener.join(2 * GONE_S)
        self.process.kill()  # only a guard that was stopped still exists
        self._listener.join()
        self._close()

    def _close(self) -> None:
        self._lines.close()
        self._channel.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            for line in self._lines:
                self._code = int(line)
                self._ended.set()
        if self.process.wait():  # somebody has killed the guard
            _kill([-self.pid])
        if self._code is None:
            self._code = -signal.SIGKILL
        self._ended.set()


def main() -> None:
    """Start the worker and report its end; kill all when the front closes the channel or ends."""
    channel = int(sys.argv[1])
    os.set_inheritable(channel, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise, exit codes could be lost
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        worker = subprocess.Popen(  # noqa: S603 (our own command)
            sys.argv[2:], start_new_session=True, close_fds=False
        )
    except OSError as error:
        _report(channel, error)
        return
    nowhere = os.open(os.devnull, os.O_RDWR)
    for pipe in (0, 1):  # only the worker keeps them, so that the front sees them close
        os.dup2(nowhere, pipe)
    _report(channel, worker.pid)
    reaper = threading.Thread(target=_reap, args=(worker.pid, channel), daemon=True)
    reaper.start()
    with contextlib.suppress(OSError):  # raised if the front died before it read everything
        os.read(channel, 1)
    end = time.monotonic() + GONE_S
    _kill([-worker.pid])
    while reaper.is_alive() and time.monotonic() < end:
        _kill(_children())
        reaper.join(0.01)


def _reap(worker: int, channel: int) -> None:
    """Wait for all children, also adopted ones, until there are none; report the worker's code."""
    with contextlib.suppress(ChildProcessError):
        while True:
            process, status = os.wait()
            if process == worker:
                _report(channel, os.waitstatus_to_exitcode(status))


def _report(channel: int, what: object) -> None:
    with contextlib.suppress(OSError):  # the front may be gone
        os.write(channel, f"{what}\n".encode())


def _children() -> list[int]:
    own, found = str(os.getpid()).encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "stat").read_bytes().rpartition(b")")[2].split()[1] == own:
                found.append(int(folder.name))
    return found


if __name__ == "__main__":
    main()
