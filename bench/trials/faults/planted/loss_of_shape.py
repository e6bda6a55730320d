"""Returns a loss for each of the batch's rows instead of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right state, and the loss eight times."""
    right = good.build(problem, mesh)

    def step(state: Any, batch: Any) -> Any:
        state, loss = right.step(state, batch)
        return state, jnp.stack([loss] * 8)

    return replace(right, step=step)
