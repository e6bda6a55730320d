"""hyperfine: times whole processes, and its scripts/welch_ttest.py tests the means, at 5 %."""

import json
import math
import shlex
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from scipy import stats

from bench.trials.selftest.peer_tools import ALPHA, PeerTrial, Program, run_tool

TIMES_PYTHON = False
REPEATS = 20
"""Calls in one process: enough to make the process's start, which counts, a small part."""

_START_S = 0.001
"""Approximate time that a process takes to start."""
_LEAST_RUNS = 2


def why_unavailable() -> str | None:
    """Return why it cannot be used here, and what to install; None if it can."""
    if shutil.which("hyperfine") is None:
        return "no hyperfine: apt install hyperfine, brew install hyperfine, or cargo install it"
    return None


def trial(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    """Time one program after the other in one invocation."""
    runs = max(_LEAST_RUNS, round(seconds / 2 / (REPEATS * base.seconds + _START_S)))
    output = directory / "hyperfine.json"
    command = [
        *("hyperfine", "--shell=none", "--style=none", "--warmup=1", f"--runs={runs}"),
        f"--export-json={output}",
        # It splits each of these as a shell would.
        *(
            shlex.join([str(program.kernel.executable), str(program.iterations), str(REPEATS)])
            for program in (base, other)
            if program.kernel
        ),
    ]
    run_tool(command, directory, seconds)
    results = json.loads(output.read_text(encoding="utf-8"))["results"]
    times = [result["times"] for result in results]
    return PeerTrial(verdict(*times), sum(map(sum, times)))


def verdict(base: Sequence[float], other: Sequence[float]) -> bool | None:
    """Return whether the other is slower, by Welch's t-test; None if it is not significant."""
    p = float(stats.ttest_ind(base, other, equal_var=False).pvalue)
    if math.isnan(p) or p >= ALPHA:
        return None
    return statistics.fmean(other) > statistics.fmean(base)
