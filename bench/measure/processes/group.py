"""The worker processes of a launch, which start and end together."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol, Self

import psutil

from bench.measure.processes.guard import Guard
from bench.measure.processes.oom_kills import killed_by_kernel, read_counters
from bench.records.current_arm import Turns

COMMAND: tuple[str, ...] = (sys.executable, "-m", "bench.worker")

_POLL_S = 0.2
_LEAVE_S = 60.0
"""Time that a process may take to exit once its output is closed, or once rank 0 has exited."""
_TAIL_LINES = 40
_LINE_CHARACTERS = 1 << 16
"""Limit on a read from stderr, whose output may lack newlines."""


class Process(Protocol):
    """A worker process on this host or another one."""

    def answer(self, line: str) -> None:
        """Queue a line for its stdin."""

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it is still running."""

    def stopped(self) -> bool:
        """Tell whether a signal such as SIGSTOP has stopped it."""

    def tail(self) -> list[str]:
        """Return the last lines of its stderr."""

    def turn(self) -> tuple[str, float]:
        """Return the arm whose turn it is, or was at the end, and the seconds of that turn."""

    def killed_by_kernel(self) -> bool | None:
        """Tell whether the kernel killed a process of the host to free memory; None if unknown."""

    def kill(self) -> None:
        """Kill it and everything that it started."""


@dataclass(frozen=True)
class End:
    """The end of a launch's processes."""

    code: int
    """Exit code of the first process that failed, or of rank 0."""
    rank: int
    """Rank of that process."""
    late: str = ""
    """The deadline that passed; empty if none did."""
    stopped: tuple[int, ...] = ()
    """Ranks of the processes that a signal such as SIGSTOP had stopped by then."""


class Group:
    """The processes of a launch; a context that kills them all.

    Args:
      start: starts the process of a rank. The callback that it gets receives each line of the
        process's output, and None after the last.
      count: number of processes.
    """

    def __init__(
        self, start: Callable[[int, Callable[[str | None], None]], Process], count: int
    ) -> None:
        self._lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self._values: dict[int, Any] = {}
        self._tails: list[deque[str]] = [deque(maxlen=_TAIL_LINES) for _ in range(count)]
        self.processes: list[Process] = []
        try:
            for rank in range(count):
                self.processes.append(start(rank, self._listener(rank)))
        except BaseException:
            self._kill()
            raise

    def _listener(self, rank: int) -> Callable[[str | None], None]:
        return lambda line: self._lines.put((rank, line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def _kill(self) -> None:
        for process in self.processes:
            process.kill()

    def answer(self, line: str) -> None:
        """Send a line to rank 0, which waits for it."""
        self.processes[0].answer(line)

    def _exchange(self, rank: int, value: Any) -> None:
        """Add the value of one process; once all have sent one, send the list to each."""
        self._values[rank] = value
        if len(self._values) == len(self.processes):
            line = json.dumps([value for _, value in sorted(self._values.items())])
            self._values.clear()
            for process in self.processes:
                process.answer(line)

    def tail(self, rank: int) -> list[str]:
        """Return the last lines that a process wrote, other than its events."""
        return [*self._tails[rank], *self.processes[rank].tail()]

    def turn(self) -> tuple[str, float]:
        """Return the arm whose turn it is, or was at the end, and the seconds of that turn.

        All processes take the same turns, and rank 0 runs on this host.
        """
        return self.processes[0].turn()

    def killed_by_kernel(self, rank: int) -> bool | None:
        """Tell whether the kernel killed a process of a rank's host to free memory."""
        return self.processes[rank].killed_by_kernel()

    def follow(
        self,
        hear: Callable[[int, dict[str, Any]], None],
        overdue: Callable[[float], str],
    ) -> End:
        """Pass on events until all processes have ended, one has failed, or a deadline has passed.

        Args:
          hear: receives the rank and the event.
          overdue: receives the seconds since the last event of any process, and returns the
            deadline that has passed, or an empty text.
        """
        last_event_at = time.monotonic()
        for rank, line in self._read_lines():
            now = time.monotonic()
            if line is None:
                end = self._end(rank)
                if end is not None:
                    return end
                continue
            event = _parse(line)
            if event is not None:
                last_event_at = now
                if event["event"] == "tell":
                    self._exchange(rank, event["value"])
                else:
                    hear(rank, event)
            elif line:
                self._tails[rank].append(line.rstrip("\n"))
            late = overdue(now - last_event_at)
            if late:
                return self._cut(0, late)
        raise AssertionError("the lines of a process end with None")

    def _end(self, rank: int) -> End | None:
        """Return the end of the launch if a process that has closed its output ends it."""
        code = self.processes[rank].code(_LEAVE_S)
        if code is None:
            return self._cut(rank, f"did not end within {_LEAVE_S:g} s")
        if rank == 0 and code == 0:
            for process in self.processes:
                process.code(_LEAVE_S)
        return End(code, rank) if code or rank == 0 else None

    def _cut(self, rank: int, late: str) -> End:
        stopped = tuple(r for r, process in enumerate(self.processes) if process.stopped())
        self._kill()
        return End(self.processes[rank].code(_LEAVE_S) or 0, rank, late, stopped)

    def _read_lines(self) -> Iterator[tuple[int, str | None]]:
        """Yield ranks and lines as they arrive, and an empty line after each interval without."""
        while True:
            try:
                yield self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                for process in self.processes:
                    if process.code(0) is not None:
                        # A child process that outlives it may keep the pipe open.
                        process.kill()
                yield 0, ""


class LocalProcess:
    """A worker process on this host, with everything that it starts.

    Args:
      job: the first line of its input.
      hear: receives each line of its output, and None after the last.
      environment: the whole environment.
      cores: cores that it may use; None for all.
      shares_host: whether the launch has other processes. If so, it runs under SCHED_BATCH where
        available: otherwise it would preempt the others whenever part of a message wakes it.
    """

    def __init__(
        self,
        job: str,
        hear: Callable[[str | None], None],
        *,
        environment: Mapping[str, str],
        cores: set[int] | None,
        shares_host: bool,
    ) -> None:
        self._hear = hear
        self._answers: queue.Queue[str | None] = queue.Queue()
        self.answer(job)
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._guard: Guard | None = Guard()
        self._turns = Turns()
        self._turn = ("", 0.0)
        self._oom_kills = read_counters()
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **self._guard.environment, **self._turns.environment},
            pass_fds=(self._turns.descriptor,),
            text=True,
            errors="replace",
            start_new_session=True,
        )
        process = self._process
        self._guard.watch(process.pid)
        # The worker's threads inherit this, because it reads its job before it starts them.
        with contextlib.suppress(ProcessLookupError):
            if cores is not None:
                os.sched_setaffinity(process.pid, cores)
            if shares_host and hasattr(os, "SCHED_BATCH"):
                os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
        self._threads = [
            threading.Thread(target=self._feed, daemon=True),
            threading.Thread(target=self._read_out, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._read_err, args=(process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def answer(self, line: str) -> None:
        """Queue a line for its stdin."""
        self._answers.put(line)

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it is still running."""
        try:
            return self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stopped(self) -> bool:
        """Tell whether a signal such as SIGSTOP has stopped it."""
        try:
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED)
        except psutil.Error:
            return False

    def tail(self) -> list[str]:
        """Return the last lines of its stderr."""
        return [line for line in self._tail if line.strip()]

    def turn(self) -> tuple[str, float]:
        """Return the arm whose turn it is, or was at the end, and the seconds of that turn."""
        return self._turn if self._guard is None else self._turns.read()

    def killed_by_kernel(self) -> bool | None:
        """Tell whether the kernel killed a process of the host to free memory; None if unknown."""
        return killed_by_kernel(self._oom_kills, read_counters())

    def kill(self) -> None:
        """Kill it and everything that it started."""
        if self._guard is None:
            return
        self._turn = self._turns.read()
        # Even a worker that has exited may have left child processes.
        self._guard.end_all()
        self._process.wait()
        self._guard.dismiss()
        self._guard = None
        self._turns.close()
        self._answers.put(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _feed(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "it is a pipe"  # noqa: S101
        # If the worker dies before it reads, its exit code will tell.
        with contextlib.suppress(OSError), stdin:
            while (line := self._answers.get()) is not None:
                stdin.write(f"{line}\n")
                stdin.flush()

    def _read_out(self, stdout: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError), stdout:
            for line in stdout:
                self._hear(line)
        self._hear(None)

    def _read_err(self, stderr: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError), stderr:
            for line in iter(lambda: stderr.readline(_LINE_CHARACTERS), ""):
                self._tail.append(line.rstrip("\n"))


def free_port(address: str) -> int:
    """Return a free TCP port of one of this host's addresses."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def _parse(line: str) -> dict[str, Any] | None:
    """Parse an event; return None for any other line."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
