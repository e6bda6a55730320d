"""Other tools, one file each, and the question put to them: are two programs equally fast?"""

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Answer, ask
from bench.trials.selftest import planted_kernel
from bench.trials.selftest.planted_kernel import SEED, Kernel

ALPHA = 0.05
"""The level of every tool's test, which is their default."""

_START_S = 60.0
_SLOWDOWN = 20.0
"""Time limit of a silent tool: this multiple of the measuring time, plus `_START_S`."""
_TAIL_LINES = 10


class PeerError(Exception):
    """A tool failed; the message ends with the last lines of its output."""


@dataclass(frozen=True)
class Program:
    """A program to be timed."""

    setup: str
    """Python code that defines the function `call()`."""
    seconds: float
    """Approximate duration of a call."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that it needs."""
    kernel: Kernel | None = None
    """The kernel whose `spin` it calls; None if it calls anything else."""
    iterations: int = 0
    """Iterations of spin in a call."""


def spinning(kernel: Kernel, iterations: int) -> Program:
    """Return the program that spins for this many iterations."""
    setup = (
        "from functools import partial\n"
        "from pathlib import Path\n"
        f"from {planted_kernel.__name__} import spin_function\n"
        f"call = partial(spin_function(Path({str(kernel.library)!r})), {iterations}, {SEED})\n"
    )
    return Program(setup, kernel.seconds_for(iterations), kernel=kernel, iterations=iterations)


@dataclass(frozen=True)
class PeerTrial:
    """The verdict of a tool on two programs, by the tool's own rule."""

    slower: bool | None
    """Whether the other program is slower; None if the tool finds no difference."""
    measured_s: float
    """Seconds within timed work, both programs together."""


class Peer(Protocol):
    """A module of this package: one tool, used according to its manual."""

    TIMES_PYTHON: bool
    """Whether it times Python functions; otherwise, a program needs a kernel."""

    def why_unavailable(self) -> str | None:
        """Return why the tool cannot be used here, and what to install; None if it can."""

    def trial(self, base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
        """Measure two programs one after the other, for half of the seconds each, and judge them.

        The tool runs and writes in the directory, an empty folder by its full path. Raises
        BadInput if a program cannot be compiled, and PeerError if the tool failed.
        """


def peer_names() -> list[str]:
    """Return the names of all tools without importing them, since some load large libraries."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find_peers() -> dict[str, Peer]:
    """Return all tools by name, available or not."""
    return {
        name: cast("Peer", importlib.import_module(f"{__name__}.{name}")) for name in peer_names()
    }


def run_tool(
    command: Sequence[str],
    directory: Path,
    seconds: float,
    environment: Mapping[str, str] | None = None,
    codes: Sequence[int] = (0,),
) -> Answer:
    """Run a tool in a folder until it ends, and end all its processes.

    A tool that is silent for much longer than its measuring time is killed. Variables of
    `environment` are added to this process's; exit codes in `codes` do not mean failure. Raises
    PeerError if the tool could not be started, failed, or took too long.
    """
    limit_s, name = _START_S + _SLOWDOWN * seconds, Path(command[0]).name
    variables = {**child_environment(), **(environment or {})}
    try:
        # Tools measure in their own child processes, which end with them.
        answer = ask(command, "", variables, limit_s, cwd=directory)
    except OSError as error:
        raise PeerError(f"{name} cannot be started: {error}") from error
    if answer.code is None:
        raise PeerError(f"{name} did not end within {limit_s:g} s")
    if answer.code not in codes:
        raise failure(name, answer)
    return answer


def failure(name: str, answer: Answer) -> PeerError:
    """Return the error for a tool that has failed."""
    last = [line for line in answer.out.splitlines() if line.strip()] + [*answer.tail]
    how = f"{name} {answer.ending}; its last lines:"
    return PeerError("\n".join([how, *last[-_TAIL_LINES:]]))
