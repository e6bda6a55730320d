"""A child process that answers one question, and is ended with everything that it started."""

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
    """A child process failed; the message ends with the last lines that it wrote."""


@dataclass(frozen=True)
class Answer:
    """What a child wrote, and how it ended."""

    out: str
    err: str
    code: int | None
    """Exit code, negative for a signal; None if the child was ended because it took too long."""

    @property
    def ending(self) -> str:
        """How the child ended, as the predicate of a sentence."""
        if self.code is None:
            return "took too long"
        if self.code < 0:
            return f"was killed by {signal_name(-self.code)}"
        return f"ended with exit code {self.code}"

    def last_lines(self, most: int) -> list[str]:
        """The last lines of its stderr that are not empty."""
        return [line for line in self.err.splitlines() if line.strip()][-most:]

    def quoted_lines(self) -> str:
        """The last lines of its stderr, indented to end an error message."""
        return "\n".join(f"  {line}" for line in self.last_lines(10)) or "  (none)"


def signal_name(number: int) -> str:
    """Name a signal: `SIGSEGV`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Child:
    """A child process with a question on its stdin; a context that ends it.

    Args:
      command: the command to start.
      question: the whole input.
      environment: the whole environment.
      heard: receives every line of its stdout when it comes, in another thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        question: str,
        environment: Mapping[str, str],
        heard: Callable[[str], None] | None = None,
    ) -> None:
        self._heard_at = time.monotonic()
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
        self._talks = [
            threading.Thread(target=_say, args=(self._process.stdin, question), daemon=True),
            threading.Thread(target=self._listen, args=(heard,), daemon=True),
            threading.Thread(
                target=_read, args=(self._process.stderr, self._err.append), daemon=True
            ),
        ]
        for talk in self._talks:
            talk.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def answer(self, timeout_s: float) -> Answer:
        """Wait until it ends, or until its stdout has been silent for this many seconds."""
        code = self._process.poll()
        while code is None and (left_s := self._heard_at + timeout_s - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(left_s)
        self.end()
        return Answer("".join(self._out), "".join(self._err), code)

    def end(self) -> None:
        """End it and everything that it started, which could keep its output open."""
        if self._guard is None:
            return
        self._guard.end_all()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        for talk in self._talks:
            talk.join(timeout=5)
        self._guard.dismiss()
        self._guard = None

    def _listen(self, heard: Callable[[str], None] | None) -> None:
        def said(line: str) -> None:
            self._heard_at = time.monotonic()
            self._out.append(line)
            if heard is not None and line.endswith("\n"):  # else it was cut off
                with contextlib.suppress(OSError):  # the listener may write to a closed pipe
                    heard(line)

        assert self._process.stdout is not None, "it is a pipe"  # noqa: S101
        _read(self._process.stdout, said)


def ask(
    command: Sequence[str], question: str, environment: Mapping[str, str], timeout_s: float
) -> Answer:
    """Start a child, write the question to its stdin, and wait until it ends.

    Args:
      command: the command to start.
      question: the whole input.
      environment: the whole environment.
      timeout_s: seconds of silence on its stdout after which the child is ended.
    """
    with Child(command, question, environment) as child:
        return child.answer(timeout_s)


def _say(pipe: IO[str], text: str) -> None:
    # The child may end before it has read everything.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(text)


def _read(pipe: IO[str], said: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            said(line)
