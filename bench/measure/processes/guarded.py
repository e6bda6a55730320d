"""A process with pipes, which ends with everything that it started."""

import contextlib
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Self, cast

from bench.measure.processes.guard import Guard
from bench.records.temporary_folders import FOLDERS

Hear = Callable[[str | None], None]
"""A callback for each line of a process's output, and for None after the last."""

TAIL_LINES = 40
_LINE_CHARACTERS = 1 << 16
"""Limit on a read from stderr, whose output may lack newlines."""


class Guarded:
    """A process in a session of its own, with a guard; a context that ends both.

    Args:
      command: the command to start.
      environment: the whole environment.
      hear: called from another thread.
      options: further arguments of subprocess.Popen.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], hear: Hear, **options: Any
    ) -> None:
        self._guard = Guard(
            command,
            environment,
            tuple(FOLDERS),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            **options,
        )
        self.pid = self._guard.pid
        self._hear = hear
        self._input: queue.Queue[str | None] = queue.Queue()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        targets = self._feed, self._read_out, self._read_err
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def say(self, line: str | None) -> None:
        """Queue a line for its stdin; None closes it."""
        self._input.put(line)

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it is still running."""
        return self._guard.code(timeout_s)

    def tail(self) -> list[str]:
        """Return the last lines of its stderr, without empty ones."""
        return [line for line in self._tail if line.strip()]

    def kill(self) -> None:
        """Kill it and everything that it started, which could keep its output open."""
        # Even a process that has exited may have left child processes.
        self._guard.end()
        self.say(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _feed(self) -> None:
        # If the process ends before it reads, its exit code will tell.
        with contextlib.suppress(OSError), cast("IO[str]", self._guard.process.stdin) as stdin:
            while (line := self._input.get()) is not None:
                stdin.write(f"{line}\n")
                stdin.flush()

    def _read_out(self) -> None:
        with (
            contextlib.suppress(OSError, ValueError),
            cast("IO[str]", self._guard.process.stdout) as stdout,
        ):
            for line in stdout:
                self._hear(line)
        self._hear(None)

    def _read_err(self) -> None:
        with (
            contextlib.suppress(OSError, ValueError),
            cast("IO[str]", self._guard.process.stderr) as stderr,
        ):
            for line in iter(lambda: stderr.readline(_LINE_CHARACTERS), ""):
                self._tail.append(line.rstrip("\n"))
