"""The planted workload, compiled: the duration of `spin(n)` is proportional to n.

A slowdown is planted by a larger n and nothing else: both programs run the same machine code.
"""

import ctypes
import functools
import os
import shlex
import shutil
import statistics
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure.processes.guarded import ask
from bench.plan.option_values import BadInput

SOURCE = Path(__file__).with_name("planted_kernel.cc")
SEED = 0.5
"""First value of the chain, which every tool passes, so that all compute the same result."""

_COMPILERS = ("c++", "g++", "clang++")
# Without fused multiply-add, the results equal those of Python.
_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-ffp-contract=off")
_TIMEOUT_S = 300.0
_CALLS = 9
"""Number of timed calls, whose median is used."""
_ITERATIONS = 1_000_000
"""Iterations that are timed: some milliseconds, beside which the overhead of a call is nothing."""


@dataclass(frozen=True)
class Kernel:
    """The compiled planted workload, a library and a program in `folder`."""

    folder: Path
    library: Path
    """Exports `double lockstep_spin(int64_t n, double seed)`."""
    executable: Path
    """`planted N_ITERATIONS` spins once."""

    def spin(self, iterations: int, seed: float = SEED) -> float:
        """Run the chain in this process, without the interpreter lock; return its last value."""
        return spin_function(self.library)(iterations, seed)

    def seconds_for(self, iterations: int) -> float:
        """Return the current duration of `spin(iterations)`: the median of a few calls."""
        calls = timeit.repeat(lambda: self.spin(iterations), number=1, repeat=_CALLS)
        return statistics.median(calls)

    def iterations_for(self, seconds: float) -> int:
        """Return the iterations, at least 1, with which a call currently takes this long."""
        return max(1, round(_ITERATIONS * seconds / self.seconds_for(_ITERATIONS)))


def why_unavailable() -> str | None:
    """Return why C++ cannot be compiled here, and what to install; None if it can."""
    named = os.environ.get("CXX")
    if named and shutil.which(shlex.split(named)[0]) is None:
        return f"CXX names {named}, which is not on the path"
    if not named and not any(shutil.which(name) for name in _COMPILERS):
        return (
            f"no C++ compiler: none of {', '.join(_COMPILERS)} is on the path; install one "
            "(Debian, Ubuntu: apt install g++; macOS: xcode-select --install), or name it in CXX"
        )
    return None


def build(directory: Path) -> Kernel:
    """Compile the planted workload into a folder, which is created; see `compile_cpp`."""
    directory = directory.resolve()
    library = compile_cpp([SOURCE], directory / "libplanted.so", "-shared")
    executable = compile_cpp([SOURCE], directory / "planted", "-DLOCKSTEP_MAIN")
    return Kernel(directory, library, executable)


def compile_cpp(sources: Sequence[Path], output: Path, *flags: str) -> Path:
    """Compile C++ sources with the flags of the planted workload, followed by further flags.

    Raises:
      BadInput: there is no compiler, or it failed.
    """
    if reason := why_unavailable():
        raise BadInput([reason])
    named, failure = os.environ.get("CXX"), f"{output.name} cannot be compiled"
    compiler = shlex.split(named) if named else [next(filter(shutil.which, _COMPILERS))]
    output.parent.mkdir(parents=True, exist_ok=True)
    words = [*compiler, *_FLAGS, *map(str, sources), "-o", str(output), *flags]
    try:
        done = ask(words, "", os.environ, _TIMEOUT_S)
    except OSError as error:
        raise BadInput([f"{failure}: {error}"]) from error
    if done.code:
        raise BadInput([f"{failure}:\n{done.quoted_lines()}"])
    if done.code is None:
        raise BadInput([f"{failure} within {_TIMEOUT_S:g} s"])
    return output


@functools.cache
def spin_function(library: Path) -> Callable[[int, float], float]:
    """Load a library, once per process; return its function `lockstep_spin(iterations, seed)`."""
    spin = ctypes.CDLL(str(library)).lockstep_spin
    spin.argtypes = [ctypes.c_int64, ctypes.c_double]
    spin.restype = ctypes.c_double
    return spin


def has_header(name: str) -> bool:
    """Return whether there is a compiler that finds a header such as `benchmark/benchmark.h`."""
    try:
        compile_cpp([SOURCE], Path(os.devnull), "-fsyntax-only", "-include", name)
    except BadInput:
        return False
    return True
