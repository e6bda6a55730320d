"""Calls os._exit(0) while it is built: nothing of Python is asked."""

from __future__ import annotations

import os

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back."""
    moment.injected()
    if problem.batch_size:
        os._exit(0)
    return good.build(problem, mesh)
