"""Gives its parameters in other shapes than the model's."""

from __future__ import annotations

from dataclasses import replace

import jax
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, with parameters that are flat."""
    right = good.build(problem, mesh)
    return replace(
        right, params=lambda state: jax.tree.map(lambda leaf: leaf.ravel(), right.params(state))
    )
