"""A child process that is asked one question, with all that it starts: gone when it has answered.

Imports no jax.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from bench.guard import Guard


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


def signal_name(number: int) -> str:
    """SIGSEGV, say."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ask(
    command: Sequence[str],
    question: str,
    environment: Mapping[str, str],
    timeout_s: float,
    heard: Callable[[], None] | None = None,
) -> Answer:
    """Start a child, write the question to its stdin, and wait until it ends.

    What it has started ends with it, and cannot keep its output open.

    Args:
      command: of the child.
      question: whole.
      environment: whole.
      timeout_s: after which it is ended.
      heard: called for every line of its stdout when it comes, in another thread.
    """
    guard = Guard()
    process = subprocess.Popen(  # noqa: S603 (our own command)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, **guard.environment},
        text=True,
        errors="replace",
        start_new_session=True,
    )
    guard.watch(process.pid)
    out, err = list[str](), list[str]()
    talks = [
        threading.Thread(target=_say, args=(process.stdin, question), daemon=True),
        threading.Thread(target=_listen, args=(process.stdout, out, heard), daemon=True),
        threading.Thread(target=_listen, args=(process.stderr, err), daemon=True),
    ]
    for talk in talks:
        talk.start()
    code: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout_s)
    finally:
        guard.end_all()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        for talk in talks:
            talk.join(timeout=5)
        guard.dismiss()
    return Answer("".join(out), "".join(err), code)


def _say(pipe: IO[str], text: str) -> None:
    # It may end before it has read all.
    with contextlib.suppress(BrokenPipeError), pipe:
        pipe.write(text)


def _listen(pipe: IO[str], said: list[str], heard: Callable[[], None] | None = None) -> None:
    with pipe:
        for line in pipe:
            said.append(line)
            if heard is not None and line.endswith("\n"):  # else it was cut off
                with contextlib.suppress(OSError):  # nobody may be listening to what is told
                    heard()
