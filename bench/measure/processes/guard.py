"""A guard that starts a worker, and ends it with all its descendants, even if the front is killed.

The guard is a small process between the two: see docs/design/processes.md. It writes the worker's
process id and exit code to a socket, and ends everything once the front asks for it or closes the
socket. On Linux it is the subreaper (prctl(2)) of the worker's descendants; elsewhere, only the
worker's process group is killed. A guard runs this file by its path, which imports only the
standard library, so that it starts quickly and needs little memory.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

MARK = "LOCKSTEP_WORKER"
"""Environment variable whose value differs for each guard."""

GONE_S = 5.0
"""Time to wait for killed processes; one that is blocked in a device driver does not die."""

_END = b"end"
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h


def marked(mark: str) -> list[int]:
    """Find the processes that were started with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid, text in _read_all("environ") if wanted in text.split(b"\0")]


def _read_all(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield the id of each process with the content of a file in its folder of /proc."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(folder.name), (folder / file).read_bytes()


def _kill(processes: Iterable[int]) -> None:
    """Kill processes, or process groups, whose ids are negative."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def _kill_marked(mark: str) -> None:
    """Kill all processes with the mark, and wait until they are gone."""
    end = time.monotonic() + GONE_S
    # A process that starts during the search is found in the next iteration.
    while (left := marked(mark)) and time.monotonic() < end:
        _kill(left)
        time.sleep(0.01)


class Guard:
    """The guard of a worker; a context that ends both, with everything that the worker started.

    `environment` is the worker's whole environment, None for that of this process; `folders` are
    removed as well if this process is killed; `options` are further arguments of subprocess.Popen.
    Raises OSError if the worker cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        folders: Iterable[str] = (),
        **options: Any,
    ) -> None:
        self._mark = os.urandom(16).hex()
        self._code: int | None = None
        self._ended = threading.Event()
        self._channel, far = socket.socketpair()
        descriptor = str(far.fileno())
        words = [sys.executable, "-IS", __file__, descriptor, self._mark, *folders, "--", *command]
        with far:
            self.process = subprocess.Popen(  # noqa: S603 (our own command)
                words,
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
            self._channel.sendall(_END)
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
            _kill_marked(self._mark)
        if self._code is None:
            self._code = -signal.SIGKILL
        self._ended.set()


def main() -> None:
    """Start the worker and report its end; when the front ends, kill all and remove folders."""
    channel, mark, split = int(sys.argv[1]), sys.argv[2], sys.argv.index("--")
    os.set_inheritable(channel, False)
    os.environ[MARK] = mark
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise, exit codes could be lost
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        worker = subprocess.Popen(  # noqa: S603 (our own command)
            sys.argv[split + 1 :], start_new_session=True, close_fds=False
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
    asked = b""
    with contextlib.suppress(OSError):  # raised if the front died before it read everything
        asked = os.read(channel, len(_END))
    end = time.monotonic() + GONE_S
    _kill([-worker.pid])
    while reaper.is_alive() and time.monotonic() < end:
        _kill(_children())
        reaper.join(0.01)
    if not asked:
        for folder in sys.argv[3:split]:
            shutil.rmtree(folder, ignore_errors=True)


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
    own = str(os.getpid()).encode()
    return [pid for pid, text in _read_all("stat") if text.rpartition(b")")[2].split()[1] == own]


if __name__ == "__main__":
    main()
