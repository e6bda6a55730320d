"""Sleeps for ever while it is built."""

from __future__ import annotations

import threading

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back."""
    moment.injected()
    threading.Event().wait()
    return good.build(problem, mesh)
