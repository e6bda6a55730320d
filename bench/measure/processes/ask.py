"""A child process that answers one question."""

import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.measure.processes.guarded import Guarded
from bench.records.printable import readable


class ChildError(Exception):
    """A child process failed; the message ends with the last lines of its stderr."""


@dataclass(frozen=True)
class Answer:
    """The output of a child and how it ended."""

    out: str
    tail: Sequence[str]
    """The last lines of its stderr, without empty ones."""
    code: int | None
    """Exit code, negative for a signal; None if the child took too long and was killed."""

    @property
    def ending(self) -> str:
        """Describe how the child ended, as the predicate of a sentence."""
        if self.code is None:
            return "took too long"
        if self.code < 0:
            return f"was killed by {signal_name(-self.code)}"
        return f"ended with exit code {self.code}"

    @property
    def blame(self) -> str:
        """Describe how the child ended, with the last line of its stderr."""
        return readable("; its last line: ".join([self.ending, *self.tail[-1:]]))

    def quoted_lines(self) -> str:
        """Indent the last lines of its stderr for the end of an error message."""
        return "\n".join(f"  {line}" for line in self.tail[-10:]) or "  (none)"


def signal_name(number: int) -> str:
    """Name a signal: `SIGSEGV`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Child(Guarded):
    """A child process that gets a question on stdin; a context that ends it.

    Args:
      command: the command to start.
      question: the whole input.
      environment: the whole environment.
      receive: called from another thread with every line of its stdout.
      options: further arguments of subprocess.Popen.
    """

    def __init__(
        self,
        command: Sequence[str],
        question: str,
        environment: Mapping[str, str],
        receive: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        self._last_line_at = time.monotonic()
        self._out: list[str] = []
        self._receive = receive
        super().__init__(command, environment, self._add, **options)
        self.say(question)
        self.say(None)

    def answer(self, timeout_s: float) -> Answer:
        """Wait until the child ends, or its stdout has been silent for `timeout_s` seconds."""
        code = self.code(0)
        while code is None and (left_s := self._last_line_at + timeout_s - time.monotonic()) > 0:
            code = self.code(left_s)
        self.kill()
        return Answer("".join(self._out), self.tail(), code)

    def _add(self, line: str | None) -> None:
        if line is not None:
            self._last_line_at = time.monotonic()
            self._out.append(line)
            if line.endswith("\n"):  # otherwise the line is incomplete
                with contextlib.suppress(OSError):  # the receiver may write to a closed pipe
                    self._receive(line)


def ask(
    command: Sequence[str],
    question: str,
    environment: Mapping[str, str],
    timeout_s: float,
    **options: Any,
) -> Answer:
    """Start a child, write the question to its stdin, and wait until it ends.

    The child is killed once its stdout has been silent for `timeout_s` seconds. `options` are
    further arguments of subprocess.Popen.
    """
    with Child(command, question, environment, **options) as child:
        return child.answer(timeout_s)
