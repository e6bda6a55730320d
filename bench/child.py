"""A child process that is asked one question, with all that it starts: gone when it has answered.

Imports no jax.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    command: Sequence[str], question: str, environment: Mapping[str, str], timeout_s: float
) -> Answer:
    """Start a child, write the question to its stdin, and wait until it ends.

    What it has started ends with it, and cannot keep its output open.
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
    said: list[str] = []
    talk = threading.Thread(target=lambda: said.extend(process.communicate(question)), daemon=True)
    talk.start()
    code: int | None = None
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        guard.end_all()
        talk.join(timeout=5)
        guard.dismiss()
    out, err = said or ("", "")
    return Answer(out, err, code)
