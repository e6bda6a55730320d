"""Linear regression with SGD: microseconds of work, so that dispatch dominates.

One `nnx.Linear` fits a planted linear map under mean squared error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.contract import PRECISIONS, Problem


@dataclass(frozen=True)
class Config:
    """Widths of the one layer."""

    features_in: int
    features_out: int


def tiny() -> Config:
    """For tests."""
    return Config(4, 2)


def base() -> Config:
    """For measuring dispatch."""
    return Config(64, 8)


SIZES = {"tiny": tiny, "base": base}
DEFAULT_SIZE = "base"


def squared_error(model: Any, batch: Any) -> jax.Array:
    """Return the mean over the batch and the outputs."""
    inputs, targets = batch
    return jnp.mean((model(inputs) - targets) ** 2)


def problem(config: Config, batch_size: int, precision: str, remat: bool = False) -> Problem:
    """Return a problem with inputs (batch, features_in) and targets (batch, features_out).

    A single layer has nothing to recompute, so `remat` changes nothing.
    """
    del remat
    dtypes = PRECISIONS[precision]
    planted = np.random.default_rng(0).normal(size=(config.features_in, config.features_out))

    def make_model() -> nnx.Linear:
        return nnx.Linear(
            config.features_in,
            config.features_out,
            dtype=dtypes.compute,
            param_dtype=dtypes.params,
            rngs=nnx.Rngs(0),
        )

    def batch(index: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.random.default_rng((1, index)).normal(size=(batch_size, config.features_in))
        return inputs.astype(dtypes.params), (inputs @ planted).astype(dtypes.params)

    return Problem(
        make_model=make_model,
        loss=squared_error,
        optimizer=optax.sgd(0.05),
        batch=batch,
        batch_size=batch_size,
        # Two products of 2mnk FLOPs: forward, and the kernel's gradient. Inputs need no gradient.
        model_flops=4.0 * batch_size * config.features_in * config.features_out,
        units_per_step=batch_size,
    )
