"""Its loss becomes NaN in the timed rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, until it is timed."""
    right = good.build(problem, mesh)

    def step(state: Any, batch: Any) -> Any:
        state, loss = right.step(state, batch)
        return state, loss * jnp.nan if moment.timed() else loss

    return replace(right, step=step)
