"""Kills its own process by SIGKILL while it is built."""

from __future__ import annotations

import os
import signal

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back."""
    moment.injected()
    os.kill(os.getpid(), signal.SIGKILL)
    return good.build(problem, mesh)
