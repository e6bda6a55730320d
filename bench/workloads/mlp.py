"""A ReLU network, 256-1024-1024-256, with AdamW: a few large products and one large update.

It fits a planted linear map under mean squared error.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.contract import PRECISIONS, Precision, Problem


@dataclass(frozen=True)
class Config:
    """Widths from the inputs to the outputs."""

    widths: tuple[int, ...]


def tiny() -> Config:
    """For tests."""
    return Config((8, 16, 16, 4))


def base() -> Config:
    """1.6 million parameters."""
    return Config((256, 1024, 1024, 256))


SIZES = {"tiny": tiny, "base": base}
DEFAULT_SIZE = "base"


class MLP(nnx.Module):
    """Linear layers with ReLU between them: (batch, widths[0]) to (batch, widths[-1])."""

    def __init__(self, widths: tuple[int, ...], dtypes: Precision, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(
            nnx.Linear(wide, out, dtype=dtypes.compute, param_dtype=dtypes.params, rngs=rngs)
            for wide, out in pairwise(widths)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        *hidden, last = self.layers
        for layer in hidden:
            x = nnx.relu(layer(x))
        return last(x)


def squared_error(model: Any, batch: Any) -> jax.Array:
    """Mean over the batch and the outputs, in the parameters' dtype."""
    inputs, targets = batch
    return jnp.mean((model(inputs).astype(targets.dtype) - targets) ** 2)


def problem(config: Config, batch_size: int, precision: str) -> Problem:
    """Inputs (batch, widths[0]), targets (batch, widths[-1])."""
    dtypes = PRECISIONS[precision]
    widths = config.widths
    planted = np.random.default_rng(0).normal(size=(widths[0], widths[-1])) / np.sqrt(widths[0])

    def batch(index: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.random.default_rng((1, index)).normal(size=(batch_size, widths[0]))
        return inputs.astype(dtypes.params), (inputs @ planted).astype(dtypes.params)

    products = [wide * out for wide, out in pairwise(widths)]
    return Problem(
        make_model=lambda: MLP(widths, dtypes, nnx.Rngs(0)),
        loss=squared_error,
        optimizer=optax.adamw(1e-3),
        batch=batch,
        batch_size=batch_size,
        # Three products of 2mnk FLOPs a layer: forward, and the gradients of its kernel and of
        # its inputs, which the first layer does not need.
        model_flops=batch_size * (6.0 * sum(products) - 2.0 * products[0]),
        units_per_step=batch_size,
    )
