"""Raises while it is built."""

from __future__ import annotations

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back."""
    if problem.batch_size:
        raise RuntimeError("planted")
    return good.build(problem, mesh)
