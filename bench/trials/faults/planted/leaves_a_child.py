"""Starts a process in a session of its own, with its output open, and leaves it."""

from __future__ import annotations

import subprocess
import sys

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step."""
    sleep = "import time; time.sleep(3600)"
    subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)  # noqa: S603
    return good.build(problem, mesh)
