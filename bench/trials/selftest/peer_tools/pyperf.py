"""pyperf: `compare_to` applies Student's t test to all values, at 5 %, and compares the means.

Three processes are started for each program. The number and duration of values are pyperf's
defaults as far as the measuring time allows.
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import sys
import time
from pathlib import Path

from bench.trials.selftest.peer_protocol import PeerError, PeerTrial, run_tool
from bench.trials.selftest.planted_kernel import SEED, Kernel

PROCESSES = 3

_VALUES = 3
_VALUE_S = 0.1
"""pyperf's defaults: values of a process, here at least, and the duration of one, here at most."""
_FASTER_OR_SLOWER = re.compile(r": \d+\.\d+x (faster|slower)$", re.MULTILINE)
_HIDDEN = "hidden because not significant"


def why_unavailable() -> str | None:
    """Why it cannot be used here, and what to install; None if it can."""
    return "no pyperf: pip install pyperf" if importlib.util.find_spec("pyperf") is None else None


def trial(kernel: Kernel, base: int, other: int, seconds: float, directory: Path) -> PeerTrial:
    """Measure one program after the other and compare the files."""
    directory = directory.resolve()  # the tool runs in it
    started = time.perf_counter()
    process_s = seconds / 2 / PROCESSES
    values = max(_VALUES, round(process_s / _VALUE_S))
    loops = max(1, round(process_s / values / kernel.seconds_for(base)))
    times = [
        _run(kernel, iterations, values, loops, seconds, directory / f"{name}.json")
        for name, iterations in (("base", base), ("other", other))
    ]
    compare = [sys.executable, "-m", "pyperf", "compare_to", "base.json", "other.json"]
    slower = verdict(run_tool(compare, directory, seconds).stdout)
    return PeerTrial(
        different=slower is not None,
        slower=slower,
        ratio=statistics.fmean(times[1]) / statistics.fmean(times[0]),
        measured_s=sum(map(sum, times)) * loops,
        wall_s=time.perf_counter() - started,
    )


def verdict(output: str) -> bool | None:
    """Whether the other is slower, by the output of `compare_to`; None if they are the same to it.

    Raises:
      PeerError: the output has no verdict.
    """
    if _HIDDEN in output:
        return None
    words = set(_FASTER_OR_SLOWER.findall(output))
    if not words:
        raise PeerError(f"pyperf compare_to gave no verdict:\n{output}")
    return "slower" in words


def _run(
    kernel: Kernel, iterations: int, values: int, loops: int, seconds: float, output: Path
) -> list[float]:
    """Return all values, in seconds a call."""
    setup = (
        "from pathlib import Path\n"
        "from bench.trials.selftest.planted_kernel import spin_function\n"
        f"spin = spin_function(Path({str(kernel.library)!r}))"
    )
    command = [
        *(sys.executable, "-m", "pyperf", "timeit", "--quiet", "--output", str(output)),
        *("--processes", str(PROCESSES), "--values", str(values), "--loops", str(loops)),
        *("--setup", setup, f"spin({iterations}, {SEED})"),
    ]
    run_tool(command, output.parent, seconds)
    (benchmark,) = json.loads(output.read_text(encoding="utf-8"))["benchmarks"]
    # Runs that only calibrate or warm up have no values.
    return [value for run in benchmark["runs"] for value in run.get("values", [])]
