"""A step that is traced for ever: a Python loop that never ends."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back."""
    moment.injected()

    def grown(x: jax.Array) -> jax.Array:
        for number in itertools.count():
            x = x + number
        return x

    jax.jit(grown)(jnp.ones(8))
    return good.build(problem, mesh)
