"""Child processes with pipes, which are killed with everything they started; questions to them."""

import contextlib
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from bench.measure.processes.guard import Guard
from bench.records.printable import ending, is_telling, readable

OnLine = Callable[[str | None], None]
"""A callback for each line of a process's output, and for None after the last."""

Variables = Mapping[str, str]
"""The environment of a process."""

TAIL_LINES = 40
_LINE_CHARACTERS = 1 << 16
"""Limit on a read from stderr, whose output may lack newlines."""


class Guarded(Guard):
    """A process with a Guard, and with pipes; `on_line` is called from another thread."""

    def __init__(
        self, command: Sequence[str], environment: Variables, on_line: OnLine, **options: Any
    ) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        super().__init__(command, environment, text=True, errors="replace", **pipes, **options)
        self._on_line = on_line
        self._input: queue.Queue[str | None] = queue.Queue()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last lines of its stderr that are telling."""
        targets = self._feed, self._read_out, self._read_err
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]
        for thread in self._threads:
            thread.start()

    def send_line(self, line: str | None) -> None:
        """Queue a line for its stdin; None closes it."""
        self._input.put(line)

    def kill(self) -> None:
        """Kill it and everything that it started, which could keep its output open."""
        super().kill()
        self.send_line(None)
        for thread in self._threads:
            thread.join(timeout=5)

    def _feed(self) -> None:
        # If the process ends before it reads, its exit code will tell.
        with contextlib.suppress(OSError), cast("IO[str]", self.process.stdin) as stdin:
            while (line := self._input.get()) is not None:
                stdin.write(f"{line}\n")
                stdin.flush()

    def _read_out(self) -> None:
        stdout = cast("IO[str]", self.process.stdout)
        with contextlib.suppress(OSError, ValueError), stdout:
            for line in stdout:
                self._on_line(line)
        self._on_line(None)

    def _read_err(self) -> None:
        stderr = cast("IO[str]", self.process.stderr)
        with contextlib.suppress(OSError, ValueError), stderr:
            lines = iter(lambda: stderr.readline(_LINE_CHARACTERS), "")
            self.tail.extend(line.rstrip("\n") for line in lines if is_telling(line))


class ChildError(Exception):
    """A child process failed; the message ends with the last lines of its stderr."""


@dataclass(frozen=True)
class Answer:
    """The output of a child and how it ended."""

    out: str
    tail: Sequence[str]
    code: int | None
    """Exit code, negative for a signal; None if the child took too long and was killed."""

    @property
    def ending(self) -> str:
        """Describe how the child ended, as the predicate of a sentence."""
        return "took too long" if self.code is None else ending(self.code)

    @property
    def blame(self) -> str:
        """Describe how the child ended, with the last line of its stderr."""
        return readable("; its last line: ".join([self.ending, *self.tail[-1:]]))

    def quoted_lines(self) -> str:
        """Indent the last lines of its stderr for the end of an error message."""
        return "\n".join(f"  {readable(line)}" for line in self.tail[-10:]) or "  (none)"


class Child(Guarded):
    """A child process whose whole input is a question; a context that ends it.

    `receive` is called from another thread with every line of its stdout.
    """

    def __init__(
        self,
        command: Sequence[str],
        question: str,
        environment: Variables,
        receive: Callable[[str], None] = lambda _: None,
        **options: Any,
    ) -> None:
        self._last_line_at = time.monotonic()
        self._out: list[str] = []
        self._receive = receive
        super().__init__(command, environment, self._add, **options)
        self.send_line(question)
        self.send_line(None)

    def answer(self, timeout_s: float) -> Answer:
        """Wait until the child ends, or its stdout has been silent for `timeout_s` seconds."""
        code = self.code(0)
        while code is None and (left_s := self._last_line_at + timeout_s - time.monotonic()) > 0:
            code = self.code(left_s)
        self.kill()
        return Answer("".join(self._out), [*self.tail], code)

    def _add(self, line: str | None) -> None:
        if line is not None:
            self._last_line_at = time.monotonic()
            self._out.append(line)
            if line.endswith("\n"):  # otherwise the line is incomplete
                with contextlib.suppress(OSError):  # the receiver may write to a closed pipe
                    self._receive(line)


def ask(
    command: Sequence[str], question: str, environment: Variables, timeout_s: float, **options: Any
) -> Answer:
    """Start a Child, wait until it ends, and kill it once it is silent for `timeout_s` seconds."""
    with Child(command, question, environment, **options) as child:
        return child.answer(timeout_s)
