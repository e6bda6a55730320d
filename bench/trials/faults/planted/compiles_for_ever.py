"""A program that is traced within a second, and that XLA:CPU compiles for longer than anyone waits.

Each of its 300 lines reads two elements of the one before. Minutes were tried; whether it would
ever end is not known.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back in time."""
    moment.injected()

    def grown(x: jax.Array) -> jax.Array:
        for number in range(300):
            x = jnp.sin(x) + jnp.roll(x, number + 1)
        return x

    jax.jit(grown).lower(jnp.ones((64, 64))).compile()
    return good.build(problem, mesh)
