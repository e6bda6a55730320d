"""A child process that answers one question."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Self

from bench.measure.processes.guard import Guard


class ChildError(Exception):
    """A child process failed; the message ends with the last lines of its stderr."""


@dataclass(frozen=True)
class Answer:
    """The output of a child and how it ended."""

    out: str
    err: str
    code: int | None
    """Exit code, negative for a signal; None if the child took too long and was killed."""

    @property
    def ending(self) -> str:
        """How the child ended, as the predicate of a sentence."""
        if self.code is None:
            return "took too long"
        if self.code < 0:
            return f"was killed by {signal_name(-self.code)}"
        return f"ended with exit code {self.code}"

    def last_lines(self, most: int) -> list[str]:
        """Return at most `most` lines from the end of its stderr, without empty ones."""
        return [line for line in self.err.splitlines() if line.strip()][-most:]

    def quoted_lines(self) -> str:
        """Indent the last lines of its stderr for the end of an error message."""
        return "\n".join(f"  {line}" for line in self.last_lines(10)) or "  (none)"


def signal_name(number: int) -> str:
    """Name a signal: `SIGSEGV`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Child:
    """A child process that gets a question on stdin; a context that ends it.

    Args:
      command: the command to start.
      question: the whole input.
      environment: the whole environment.
      receive: called from another thread with every line of its stdout.
    """

    def __init__(
        self,
        command: Sequence[str],
        question: str,
        environment: Mapping[str, str],
        receive: Callable[[str], None] | None = None,
    ) -> None:
        self._last_line_at = time.monotonic()
        self._guard: Guard | None = Guard()
        self._process = subprocess.Popen(  # noqa: S603 (our own command)
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **self._guard.environment},
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._guard.watch(self._process.pid)
        self._out, self._err = list[str](), list[str]()
        self._threads = [
            threading.Thread(target=_write, args=(self._process.stdin, question), daemon=True),
            threading.Thread(target=self._read_out, args=(receive,), daemon=True),
            threading.Thread(
                target=_read, args=(self._process.stderr, self._err.append), daemon=True
            ),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def answer(self, timeout_s: float) -> Answer:
        """Wait until it ends, or until its stdout has been silent for this many seconds."""
        code = self._process.poll()
        while code is None and (left_s := self._last_line_at + timeout_s - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(left_s)
        self.end()
        return Answer("".join(self._out), "".join(self._err), code)

    def end(self) -> None:
        """Kill it and everything that it started, which could keep its output open."""
        if self._guard is None:
            return
        self._guard.end_all()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for thread in self._threads:
            thread.join(timeout=5)
        self._guard.dismiss()
        self._guard = None

    def _read_out(self, receive: Callable[[str], None] | None) -> None:
        def add(line: str) -> None:
            self._last_line_at = time.monotonic()
            self._out.append(line)
            if receive is not None and line.endswith("\n"):  # otherwise the line is incomplete
                with contextlib.suppress(OSError):  # the receiver may write to a closed pipe
                    receive(line)

        assert self._process.stdout is not None, "it is a pipe"  # noqa: S101
        _read(self._process.stdout, add)


def ask(
    command: Sequence[str], question: str, environment: Mapping[str, str], timeout_s: float
) -> Answer:
    """Start a child, write the question to its stdin, and wait until it ends.

    The child is killed once its stdout has been silent for `timeout_s` seconds.
    """
    with Child(command, question, environment) as child:
        return child.answer(timeout_s)


def _write(pipe: IO[str], text: str) -> None:
    # The child may end before it has read everything.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(text)


def _read(pipe: IO[str], receive: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            receive(line)
