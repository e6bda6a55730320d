"""Its parameters grow without bound in the timed rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, until it is timed."""
    right = good.build(problem, mesh)

    def step(state: Any, batch: Any) -> Any:
        (params, opt_state), loss = right.step(state, batch)
        if moment.timed():
            params = jax.tree.map(lambda leaf: leaf * 1.5, params)
        return (params, opt_state), loss

    return replace(right, step=step)
