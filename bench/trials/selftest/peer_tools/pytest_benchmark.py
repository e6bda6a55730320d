"""pytest-benchmark: a run fails if its fastest call takes over 2 % longer than the base's.

This is a threshold rather than a test, and it works in one direction: without a regression, the
programs count as equal.
"""

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure.processes.guarded import Answer
from bench.trials.selftest.peer_tools import PeerTrial, Program, failure, run_tool

THRESHOLD = "min:2%"
"""Equal to Lockstep's default margin; the tool accepts whole percents only."""

TIMES_PYTHON = True

_SETUP = "LOCKSTEP_SETUP"
"""Environment variable with the code of `Program.setup`."""
_REGRESSED = "Performance has regressed"


def test_call(benchmark: Callable[..., object]) -> None:
    """Time repeated calls of the program, in the tool's own process."""
    names: dict[str, Any] = {}
    exec(os.environ[_SETUP], names)  # noqa: S102 - our own code
    benchmark(names["call"])


def why_unavailable() -> str | None:
    """Return why it cannot be used here, and what to install; None if it can."""
    if importlib.util.find_spec("pytest_benchmark") is None:
        return "no pytest-benchmark: pip install pytest-benchmark"
    return None


def trial(base: Program, other: Program, seconds: float, directory: Path) -> PeerTrial:
    """Save a run of the base, and compare a run of the other program with it."""
    # Without this file, the tool would use the configuration of a parent folder.
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    _run(base, seconds / 2, directory, "--benchmark-save=base")
    compare = ("--benchmark-compare=0001", f"--benchmark-compare-fail={THRESHOLD}")
    done = _run(other, seconds / 2, directory, "--benchmark-save=other", *compare)
    stats = [_stats(directory, name) for name in ("0001_base", "0002_other")]
    measured_s = sum(each["total"] * each["iterations"] for each in stats)
    return PeerTrial(True if has_regressed(done) else None, measured_s)


def has_regressed(done: Answer) -> bool:
    """Read the verdict from the tool's output; PeerError if it failed for another reason."""
    regressed = any(_REGRESSED in line for line in done.tail)
    if bool(done.code) != regressed:
        raise failure("pytest", done)
    return regressed


def _run(program: Program, seconds: float, directory: Path, *options: str) -> Answer:
    command = [
        *(sys.executable, "-m", "pytest", f"{__file__}::{test_call.__name__}"),
        *("-c", str(directory / "pytest.ini"), f"--rootdir={directory}", "-p", "no:cacheprovider"),
        f"--benchmark-storage={(directory / 'storage').as_uri()}",
        f"--benchmark-max-time={seconds:.6f}",
        *options,
    ]
    variables = {**program.environment, _SETUP: program.setup, "PYTEST_ADDOPTS": ""}
    # The exit code of a failed test is also that of a regression.
    return run_tool(command, directory, seconds, variables, codes=(0, 1))


def _stats(directory: Path, name: str) -> dict[str, Any]:
    (path,) = (directory / "storage").glob(f"*/{name}.json")
    (benchmark,) = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    return dict(benchmark["stats"])
