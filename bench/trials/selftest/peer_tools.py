"""Other tools, and the question put to each of them: are two programs equally fast?"""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Answer, ChildError, ask

_START_S = 60.0
_SLOWDOWN = 20.0
"""Time limit of a silent tool: this multiple of the measuring time, plus `_START_S`."""
_TAIL_LINES = 10


@dataclass(frozen=True)
class Program:
    """A program to be timed."""

    setup: str
    """Python code that defines the function `call()`."""
    seconds: float
    """Approximate duration of a call."""
    environment: Mapping[str, str]
    """Environment variables that it needs."""


@dataclass(frozen=True)
class PeerTrial:
    """The verdict of a tool on two programs, by the tool's own rule."""

    slower: bool | None
    """Whether the other program is slower; None if the tool finds no difference."""
    measured_s: float
    """Seconds within timed work, both programs together."""


Trial = Callable[[Program, Program, float, Path], PeerTrial]
"""Measures two programs one after the other, for half of the seconds each, and judges them.

The tool runs as its manual says, and writes in the directory, an empty folder by its full path.
Raises ChildError if it failed."""


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
    ChildError if the tool could not be started, failed, or took too long.
    """
    limit_s, name = _START_S + _SLOWDOWN * seconds, Path(command[0]).name
    variables = {**child_environment(), **(environment or {})}
    try:
        # Tools measure in their own child processes, which end with them.
        answer = ask(command, "", variables, limit_s, cwd=directory)
    except OSError as error:
        raise ChildError(f"{name} cannot be started: {error}") from error
    if answer.code is None:
        raise ChildError(f"{name} did not end within {limit_s:g} s")
    if answer.code not in codes:
        raise _failure(name, answer)
    return answer


def _failure(name: str, answer: Answer) -> ChildError:
    last = [line for line in answer.out.splitlines() if line.strip()] + [*answer.tail]
    how = f"{name} {answer.ending}; its last lines:"
    return ChildError("\n".join([how, *last[-_TAIL_LINES:]]))


def why_unavailable(name: str) -> str | None:
    """Return why a tool cannot be used here, and what to install; None if it can."""
    package = name.replace("_", "-")
    return None if importlib.util.find_spec(name) else f"no {package}: pip install {package}"


def _benchmarks(path: Path) -> list[dict[str, Any]]:
    """Read the benchmarks from a tool's result file."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    return found


# pyperf: `compare_to` applies Student's t-test to all values, and compares the means. Three
# processes are started for each program. The number and duration of values are pyperf's defaults as
# far as the measuring time allows.

PROCESSES = 3
_VALUES = 3
_VALUE_S = 0.1
"""pyperf's defaults: values per process (a minimum here), and seconds per value (a maximum)."""
_FASTER_OR_SLOWER = re.compile(r": \d+\.\d+x (faster|slower)$", re.MULTILINE)


def _pyperf(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    process_s = seconds / 2 / PROCESSES
    values = max(_VALUES, round(process_s / _VALUE_S))
    loops = max(1, round(process_s / values / base.seconds))
    pyperf, measured_s = [sys.executable, "-m", "pyperf"], 0.0
    for name, program in (("base", base), ("other", other)):
        output = directory / f"{name}.json"
        command = [
            *(*pyperf, "timeit", "--quiet", "--output", str(output)),
            *("--processes", str(PROCESSES), "--values", str(values), "--loops", str(loops)),
            f"--inherit-environ={','.join(program.environment)}",
            *("--setup", program.setup, "call()"),
        ]
        run_tool(command, directory, seconds, program.environment)
        (benchmark,) = _benchmarks(output)
        # Runs that only calibrate or warm up have no values, which are seconds per call.
        measured_s += loops * sum(sum(run.get("values", [])) for run in benchmark["runs"])
    compared = run_tool([*pyperf, "compare_to", "base.json", "other.json"], directory, seconds)
    return PeerTrial(compare_to_slower(compared.out), measured_s)


def compare_to_slower(output: str) -> bool | None:
    """Return whether the other is slower, by the output of `compare_to`; None for no difference."""
    if "hidden because not significant" in output:
        return None
    words = set(_FASTER_OR_SLOWER.findall(output))
    if not words:
        raise ChildError(f"pyperf compare_to gave no verdict:\n{output}")
    return "slower" in words


# pytest-benchmark: a run fails if its fastest call takes over 2 % longer than the base's. This is a
# threshold rather than a test, and it works in one direction: without a regression, the programs
# count as equal.

THRESHOLD = "min:2%"
"""Equal to Lockstep's default margin; the tool accepts whole percents only."""
_SETUP = "LOCKSTEP_SETUP"
"""Environment variable with the code of `Program.setup`."""


def test_call(benchmark: Callable[..., object]) -> None:
    """Time repeated calls of the program, in the tool's own process."""
    names: dict[str, Any] = {}
    exec(os.environ[_SETUP], names)  # noqa: S102 - our own code
    benchmark(names["call"])


def _pytest_benchmark(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    # Without this file, the tool would use the configuration of a parent folder.
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    storage, measured_s = directory / "storage", 0.0
    compare = ("--benchmark-compare=0001", f"--benchmark-compare-fail={THRESHOLD}")
    for name, program, options in (("0001_base", base, ()), ("0002_other", other, compare)):
        command = [
            *(sys.executable, "-m", "pytest", f"{__file__}::{test_call.__name__}"),
            *("-c", str(directory / "pytest.ini"), f"--rootdir={directory}"),
            *("-p", "no:cacheprovider", f"--benchmark-storage={storage.as_uri()}"),
            f"--benchmark-max-time={seconds / 2:.6f}",
            *(f"--benchmark-save={name.partition('_')[2]}", *options),
        ]
        variables = {**program.environment, _SETUP: program.setup, "PYTEST_ADDOPTS": ""}
        # The exit code of a failed test is also that of a regression.
        codes = (0, 1) if options else (0,)
        done = run_tool(command, directory, seconds / 2, variables, codes)
        (path,) = storage.glob(f"*/{name}.json")
        (benchmark,) = _benchmarks(path)
        measured_s += benchmark["stats"]["total"] * benchmark["stats"]["iterations"]
    return PeerTrial(True if has_regressed(done) else None, measured_s)


def has_regressed(done: Answer) -> bool:
    """Read the verdict from the tool's output; ChildError if it failed for another reason."""
    regressed = any("Performance has regressed" in line for line in done.tail)
    if bool(done.code) != regressed:
        raise _failure("pytest", done)
    return regressed


PEERS: dict[str, Trial] = {"pyperf": _pyperf, "pytest_benchmark": _pytest_benchmark}
"""All tools by the names of their modules, available or not."""
