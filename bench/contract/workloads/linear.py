"""Linear regression with SGD: microseconds of work, so that dispatch dominates.

One `nnx.Linear` fits a planted linear map under mean squared error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import DTypeLike

from bench.contract import PRECISIONS, Problem


@dataclass(frozen=True)
class Config:
    """Widths of the single layer."""

    features_in: int
    features_out: int


SIZES = {"tiny": lambda: Config(4, 2), "base": lambda: Config(64, 8)}
DEFAULT_SIZE = "base"


def batches_of(planted: np.ndarray, rows: int, dtype: DTypeLike) -> Callable[[int], Any]:
    """Return `batch(i)`: normal inputs (rows, features) and their targets under a planted map."""

    def batch(index: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.random.default_rng((1, index)).normal(size=(rows, len(planted)))
        return inputs.astype(dtype), (inputs @ planted).astype(dtype)

    return batch


def squared_error(model: Any, batch: Any) -> jax.Array:
    """Return the mean squared error over batch and outputs, in the parameters' dtype."""
    inputs, targets = batch
    return jnp.mean((model(inputs).astype(targets.dtype) - targets) ** 2)


def problem(config: Config, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return a problem with inputs (batch, features_in) and targets (batch, features_out).

    A single layer has nothing to recompute, so `remat` changes nothing.
    """
    del remat
    dtypes = PRECISIONS[precision]
    inputs, outputs = config.features_in, config.features_out
    planted = np.random.default_rng(0).normal(size=(inputs, outputs))
    return Problem(
        make_model=lambda: nnx.Linear(inputs, outputs, **dtypes.of_layer(nnx.Rngs(0))),
        loss=squared_error,
        optimizer=optax.sgd(0.05),
        batch=batches_of(planted, batch_size, dtypes.params),
        batch_size=batch_size,
        outline={
            "model": "linear",
            "loss": "squared error",
            "optimizer": {"name": "sgd", "learning_rate": 0.05},
            "compute": jnp.dtype(dtypes.compute).name,
        },
        # Two products of 2mnk FLOPs: forward, and the kernel's gradient. Inputs need no gradient.
        model_flops=4.0 * batch_size * inputs * outputs,
        units_per_step=batch_size,
    )
