"""Starts a thread that never ends, and that Python waits for when it exits."""

from __future__ import annotations

import threading

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step."""
    threading.Thread(target=threading.Event().wait).start()
    return good.build(problem, mesh)
