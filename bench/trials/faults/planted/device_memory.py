"""Asks for an array that no device can hold."""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """An array of 256 TiB."""
    jnp.zeros((1 << 46,)).block_until_ready()
    return good.build(problem, mesh)
