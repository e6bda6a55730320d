"""A workload whose own loss is NaN, whoever computes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from bench.contract import Problem
from bench.contract.workloads import linear

SIZES = linear.SIZES
DEFAULT_SIZE = "tiny"


def problem(config: Any, batch_size: int, precision: str, remat: bool = False) -> Problem:
    """As linear, with the logarithm of a negative number added to the loss."""
    right = linear.problem(config, batch_size, precision, remat)

    def loss(model: Any, batch: Any) -> jax.Array:
        return right.loss(model, batch) + jnp.log(-jnp.ones(()))

    return replace(right, loss=loss)
