"""Google Benchmark: its compare.py applies the Mann-Whitney U test to repetitions, at 5 %.

It prints p-values for wall time and for CPU time. The former is used, because the other tools judge
by it, and because a JAX step does not run in one thread.
"""

import functools
import json
import re
import sys
from pathlib import Path
from typing import Any

from bench.trials.selftest import planted_kernel
from bench.trials.selftest.peer_tools import ALPHA, PeerTrial, Program, run_tool
from bench.trials.selftest.planted_kernel import Kernel

TIMES_PYTHON = False
LEAST_REPETITIONS = 9
"""The number that its manual recommends for the U test."""

_PROGRAM = Path(__file__).with_name("spin_google.cc")
_HEADER = "benchmark/benchmark.h"
_COMPARE = tuple(
    Path(place) / "compare.py"
    for place in (
        "/usr/share/benchmark",  # Debian's libbenchmark-tools
        "/usr/share/googlebenchmark/tools",  # its own installation, also under other prefixes
        "/usr/local/share/googlebenchmark/tools",
        "/opt/homebrew/share/googlebenchmark/tools",
    )
)
_REPETITION_S = 0.5
"""Its default duration of a repetition, used here as an upper limit."""
_OVERSHOOT = 1.4
"""Duration of a repetition as a multiple of the minimum time that is requested."""
_P_VALUES = re.compile(r"^spin\S*_pvalue +([\d.]+) +([\d.]+) +U Test", re.MULTILINE)


def why_unavailable() -> str | None:
    """Return why it cannot be used here, and what to install; None if it can."""
    if reason := planted_kernel.why_unavailable():
        return reason
    if not planted_kernel.has_header(_HEADER) or _compare_py() is None:
        return (
            f"no {_HEADER} or no compare.py of it: apt install libbenchmark-dev "
            "libbenchmark-tools, or brew install google-benchmark"
        )
    return None


def trial(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    """Run one program after the other and compare their result files.

    The benchmark is compiled once per process, outside of the trial's time.
    """
    runs = [
        _run(_program(program.kernel), program.iterations, seconds / 2, directory / f"{name}.json")
        for name, program in (("base", base), ("other", other))
        if program.kernel
    ]
    compare = [sys.executable, "-B", str(_compare_py()), "--no-color", "benchmarks"]
    output = run_tool([*compare, "base.json", "other.json"], directory, seconds).out
    medians = [_median(run) for run in runs]
    slower = medians[1] > medians[0] if verdict(output) else None
    return PeerTrial(slower, sum(map(_measured_s, runs)))


def verdict(output: str) -> bool | None:
    """Return whether the times differ, by the p-value from compare.py; None if it prints none."""
    values = _P_VALUES.search(output)
    return float(values[1]) < ALPHA if values else None


def _compare_py() -> Path | None:
    return next((path for path in _COMPARE if path.is_file()), None)


@functools.cache
def _program(kernel: Kernel) -> Path:
    output = kernel.folder / "spin_google"
    sources = [_PROGRAM, planted_kernel.SOURCE]
    return planted_kernel.compile_cpp(sources, output, "-lbenchmark", "-pthread")


def _run(program: Path, iterations: int, seconds: float, output: Path) -> list[dict[str, Any]]:
    """Return one row for each repetition, and one for each of their aggregates."""
    repetitions = max(LEAST_REPETITIONS, round(seconds / _REPETITION_S))
    command = [
        str(program),
        f"--benchmark_repetitions={repetitions}",
        f"--benchmark_min_time={seconds / repetitions / _OVERSHOOT:.6f}",
        *(f"--benchmark_out={output}", "--benchmark_out_format=json"),
        str(iterations),
    ]
    run_tool(command, output.parent, seconds)
    rows: list[dict[str, Any]] = json.loads(output.read_text(encoding="utf-8"))["benchmarks"]
    return rows


def _median(rows: list[dict[str, Any]]) -> float:
    """Return the median of the repetitions, in nanoseconds of wall time per call."""
    (median,) = (row["real_time"] for row in rows if row.get("aggregate_name") == "median")
    return float(median)


def _measured_s(rows: list[dict[str, Any]]) -> float:
    repetitions = [row for row in rows if row["run_type"] == "iteration"]
    return sum(1e-9 * float(row["real_time"] * row["iterations"]) for row in repetitions)
