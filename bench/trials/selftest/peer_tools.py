"""Other tools, and the question put to each of them: are two programs equally fast?"""

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Answer, ChildError, ask
from bench.trials.selftest import planted_kernel
from bench.trials.selftest.planted_kernel import SEED, Kernel

ALPHA = 0.05
"""The level of every tool's test, which is their default."""

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


@dataclass(frozen=True)
class Peer:
    """One tool, used according to its manual."""

    why_unavailable: Callable[[], str | None]
    """Returns why the tool cannot be used here, and what to install; None if it can."""
    trial: Callable[[Program, Program, float, Path], PeerTrial]
    """Measures two programs one after the other, for half of the seconds each, and judges them.

    The tool runs and writes in the directory, an empty folder by its full path. Raises BadInput
    if a program cannot be compiled, and ChildError if the tool failed."""
    times_python: bool = True
    """Whether it times Python functions; otherwise, a program needs a kernel."""


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


def _no_package(name: str) -> str | None:
    found = importlib.util.find_spec(name.replace("-", "_"))
    return None if found else f"no {name}: pip install {name}"


def _benchmarks(path: Path) -> list[dict[str, Any]]:
    """Read the benchmarks from a result file of any tool but hyperfine."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    return found


# Google Benchmark: its compare.py applies SciPy's Mann-Whitney U test to repetitions, to wall times
# and to CPU times. The former are used, because the other tools judge by them, and because a JAX
# step does not run in one thread.

LEAST_REPETITIONS = 9
"""The number that its manual recommends for the U test."""
_REPETITION_S = 0.5
"""Its default duration of a repetition, used here as an upper limit."""
_OVERSHOOT = 1.4
"""Duration of a repetition as a multiple of the minimum time that is requested."""

_HEADER = "benchmark/benchmark.h"


def _no_google_benchmark() -> str | None:
    if reason := planted_kernel.why_unavailable():
        return reason
    if planted_kernel.has_header(_HEADER):
        return None
    return f"no {_HEADER}: apt install libbenchmark-dev, or brew install google-benchmark"


def _google_benchmark(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    repetitions = max(LEAST_REPETITIONS, round(seconds / 2 / _REPETITION_S))
    times, measured_s = [], 0.0
    for name, program in (("base", base), ("other", other)):
        output = directory / f"{name}.json"
        command = [
            str(_spin_google(cast("Kernel", program.kernel))),
            f"--benchmark_repetitions={repetitions}",
            f"--benchmark_min_time={seconds / 2 / repetitions / _OVERSHOOT:.6f}",
            *(f"--benchmark_out={output}", "--benchmark_out_format=json"),
            str(program.iterations),
        ]
        run_tool(command, directory, seconds / 2)
        # A row for each repetition, and one for each of their aggregates, in nanoseconds.
        rows = [row for row in _benchmarks(output) if row["run_type"] == "iteration"]
        times.append([row["real_time"] for row in rows])
        measured_s += sum(1e-9 * float(row["real_time"] * row["iterations"]) for row in rows)
    return PeerTrial(u_test_slower(*times), measured_s)


@functools.cache
def _spin_google(kernel: Kernel) -> Path:
    """Compile the benchmark, once per process and outside of the trial's time."""
    sources = [Path(__file__).with_name("spin_google.cc"), planted_kernel.SOURCE]
    output = kernel.folder / "spin_google"
    return planted_kernel.compile_cpp(sources, output, "-lbenchmark", "-pthread")


def u_test_slower(base: Sequence[float], other: Sequence[float]) -> bool | None:
    """Return whether the other is slower, by the U test; None if it is not significant."""
    from scipy import stats  # noqa: PLC0415 (takes a second to load)

    p = stats.mannwhitneyu(base, other, alternative="two-sided").pvalue
    return statistics.median(other) > statistics.median(base) if p < ALPHA else None


# hyperfine: times whole processes, and its scripts/welch_ttest.py tests the means.

REPEATS = 20
"""Length of a process in calls, enough that its start, which counts, is a small part."""
_START_OF_PROCESS_S = 0.001
_LEAST_RUNS = 2


def _no_hyperfine() -> str | None:
    if shutil.which("hyperfine"):
        return None
    return "no hyperfine: apt install hyperfine, brew install hyperfine, or cargo install it"


def _hyperfine(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    run_s = REPEATS * base.seconds + _START_OF_PROCESS_S
    runs = max(_LEAST_RUNS, round(seconds / 2 / run_s))
    output = directory / "hyperfine.json"
    command = [
        *("hyperfine", "--shell=none", "--style=none", "--warmup=1", f"--runs={runs}"),
        f"--export-json={output}",
        # It splits each of these as a shell would.
        *(
            shlex.join([str(program.kernel.executable), str(program.iterations * REPEATS)])
            for program in (base, other)
            if program.kernel
        ),
    ]
    run_tool(command, directory, seconds)
    results = json.loads(output.read_text(encoding="utf-8"))["results"]
    times = [result["times"] for result in results]
    return PeerTrial(welch_slower(*times), sum(map(sum, times)))


def welch_slower(base: Sequence[float], other: Sequence[float]) -> bool | None:
    """Return whether the other is slower, by Welch's t-test; None if it is not significant."""
    from scipy import stats  # noqa: PLC0415 (takes a second to load)

    p = stats.ttest_ind(base, other, equal_var=False).pvalue  # NaN if no time differs
    return statistics.fmean(other) > statistics.fmean(base) if p < ALPHA else None


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


PEERS = {
    "google_benchmark": Peer(_no_google_benchmark, _google_benchmark, times_python=False),
    "hyperfine": Peer(_no_hyperfine, _hyperfine, times_python=False),
    "pyperf": Peer(lambda: _no_package("pyperf"), _pyperf),
    "pytest_benchmark": Peer(lambda: _no_package("pytest-benchmark"), _pytest_benchmark),
}
"""All tools by name, available or not."""
