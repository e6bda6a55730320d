"""A child process that is asked one question, with all that it starts: gone when it has answered.

Imports no jax.
"""

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
    """As of subprocess, below 0 for a signal; None where it was ended because it took too long."""

    @property
    def ending(self) -> str:
        """How it ended, as the rest of a sentence about it."""
        if self.code is None:
            return "took too long"
        if self.code < 0:
            return f"was killed by {signal_name(-self.code)}"
        return f"ended with exit code {self.code}"

    def last_lines(self, most: int) -> list[str]:
        """Of what it wrote to stderr."""
        return [line for line in self.err.splitlines() if line.strip()][-most:]

    def quoted_lines(self) -> str:
        """The last lines of its stderr, indented to end an error message."""
        return "\n".join(f"  {line}" for line in self.last_lines(10)) or "  (none)"


def signal_name(number: int) -> str:
    """SIGSEGV, say."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Child:
    """A child process that has been asked. As a context, it is gone at the end of it."""

    def __init__(
        self,
        command: Sequence[str],
        question: str,
        environment: Mapping[str, str],
        heard: Callable[[str], None] | None = None,
    ) -> None:
        """Start it, and write the question to its stdin.

        Args:
          command: of the child.
          question: whole.
          environment: whole.
          heard: called with every line of its stdout when it comes, in another thread.
        """
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
        """Wait until it ends by itself, or has said nothing on its stdout for so many seconds."""
        code = self._process.poll()
        while code is None and (left_s := self._heard_at + timeout_s - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(left_s)
        self.end()
        return Answer("".join(self._out), "".join(self._err), code)

    def end(self) -> None:
        """End it, and all that it has started, which could keep its output open."""
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
                with contextlib.suppress(OSError):  # nobody may be listening to what is told
                    heard(line)

        assert self._process.stdout is not None, "it is a pipe"  # noqa: S101
        _read(self._process.stdout, said)


def ask(
    command: Sequence[str], question: str, environment: Mapping[str, str], timeout_s: float
) -> Answer:
    """Start a child, write the question to its stdin, and wait until it ends.

    Args:
      command: of the child.
      question: whole.
      environment: whole.
      timeout_s: without a line on its stdout, after which it is ended.
    """
    with Child(command, question, environment) as child:
        return child.answer(timeout_s)


def _say(pipe: IO[str], text: str) -> None:
    # It may end before it has read all.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(text)


def _read(pipe: IO[str], said: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            said(line)
