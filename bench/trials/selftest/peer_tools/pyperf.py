"""pyperf: `compare_to` applies Student's t-test to all values, at 5 %, and compares the means.

Three processes are started for each program. The number and duration of values are pyperf's
defaults as far as the measuring time allows.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

from bench.trials.selftest.peer_tools import PeerError, PeerTrial, Program, run_tool

TIMES_PYTHON = True
PROCESSES = 3

_VALUES = 3
_VALUE_S = 0.1
"""pyperf's defaults: values per process (a minimum here), and seconds per value (a maximum)."""
_FASTER_OR_SLOWER = re.compile(r": \d+\.\d+x (faster|slower)$", re.MULTILINE)
_HIDDEN = "hidden because not significant"


def why_unavailable() -> str | None:
    """Return why it cannot be used here, and what to install; None if it can."""
    return "no pyperf: pip install pyperf" if importlib.util.find_spec("pyperf") is None else None


def trial(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    """Measure one program after the other and compare the files."""
    process_s = seconds / 2 / PROCESSES
    values = max(_VALUES, round(process_s / _VALUE_S))
    loops = max(1, round(process_s / values / base.seconds))
    times = [
        _run(program, values, loops, seconds, directory / f"{name}.json")
        for name, program in (("base", base), ("other", other))
    ]
    compare = [sys.executable, "-m", "pyperf", "compare_to", "base.json", "other.json"]
    slower = verdict(run_tool(compare, directory, seconds).out)
    return PeerTrial(slower, sum(map(sum, times)) * loops)


def verdict(output: str) -> bool | None:
    """Return whether the other is slower, by the output of `compare_to`; None for no difference."""
    if _HIDDEN in output:
        return None
    words = set(_FASTER_OR_SLOWER.findall(output))
    if not words:
        raise PeerError(f"pyperf compare_to gave no verdict:\n{output}")
    return "slower" in words


def _run(program: Program, values: int, loops: int, seconds: float, output: Path) -> list[float]:
    """Return all values, in seconds per call."""
    command = [
        *(sys.executable, "-m", "pyperf", "timeit", "--quiet", "--output", str(output)),
        *("--processes", str(PROCESSES), "--values", str(values), "--loops", str(loops)),
        f"--inherit-environ={','.join(program.environment)}",
        *("--setup", program.setup, "call()"),
    ]
    run_tool(command, output.parent, seconds, program.environment)
    (benchmark,) = json.loads(output.read_text(encoding="utf-8"))["benchmarks"]
    # Runs that only calibrate or warm up have no values.
    return [value for run in benchmark["runs"] for value in run.get("values", [])]
