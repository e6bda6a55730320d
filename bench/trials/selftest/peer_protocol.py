"""What Lockstep asks of another tool: are these two programs equally fast? And how it runs them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.measure.environment import child_environment
from bench.trials.selftest.planted_kernel import Kernel

ALPHA = 0.05
"""The level of every tool's test: what each of them uses if it is not told otherwise."""

_START_S = 60.0
_SLOWDOWN = 20.0
"""A loaded machine is given this many times the measuring time, after `_START_S`."""
_TAIL_LINES = 10


class PeerError(Exception):
    """A tool failed; the message ends with the last lines it wrote."""


@dataclass(frozen=True)
class PeerTrial:
    """What one tool says of two programs, by its own rule."""

    different: bool | None
    """Whether they are not equally fast; None where it cannot say."""
    slower: bool | None
    """Whether the other is slower; None where it does not say that they differ."""
    ratio: float
    """Time of the other over time of the base, in the tool's own measure."""
    measured_s: float
    """Seconds inside timed work, both programs together."""
    wall_s: float
    """Seconds that the trial took, with every start-up."""


class Peer(Protocol):
    """A module in `bench.trials.selftest.peer_tools`: one tool, used as its manual says."""

    def why_unavailable(self) -> str | None:
        """Why it cannot be used here, and what to install; None if it can."""

    def trial(
        self, kernel: Kernel, base: int, other: int, seconds: float, directory: Path
    ) -> PeerTrial:
        """Measure two programs, one after the other, and let the tool judge.

        Args:
          kernel: the planted workload.
          base: iterations of spin in one call, which takes about a millisecond.
          other: the same of the other program.
          seconds: measuring time of both programs together; half is for each.
          directory: an empty folder, for everything that the tool writes.

        Raises:
          KernelError: a program cannot be compiled.
          PeerError: the tool failed.
        """


def run_tool(
    command: Sequence[str],
    directory: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    codes: Sequence[int] = (0,),
) -> subprocess.CompletedProcess[str]:
    """Run a tool in a folder until it ends; its whole process group is gone afterwards.

    Args:
      command: program and arguments.
      directory: where it runs.
      seconds: its measuring time; it is ended when it takes much longer.
      environment: variables added to this process's.
      codes: exit codes that are no failure.

    Raises:
      PeerError: it could not be started, failed, or took too long.
    """
    limit = _START_S + _SLOWDOWN * seconds
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(  # noqa: S603 (our own command)
            command,
            cwd=directory,
            env={**child_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise PeerError(f"{name} cannot be started: {error}") from error
    with process:
        try:
            output, faults = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{name} did not end within {limit:g} s") from error
        finally:
            # The whole group: tools measure in processes of their own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    done = subprocess.CompletedProcess(command, process.returncode, output, faults)
    if done.returncode not in codes:
        raise failure(done)
    return done


def failure(done: subprocess.CompletedProcess[str]) -> PeerError:
    """The error for a tool that has ended otherwise than it should."""
    last = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    name = Path(done.args[0]).name
    how = f"{name} ended with exit code {done.returncode}; its last lines:"
    return PeerError("\n".join([how, *last[-_TAIL_LINES:]]))
