"""A ReLU network, 256-1024-1024-256, with AdamW: a few large products and one large update.

It fits a planted linear map under mean squared error, as `linear` does.
"""

from dataclasses import dataclass
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.contract import PRECISIONS, WHOLE, ModelAxis, Precision, Problem
from bench.contract.layers import RowLinear
from bench.contract.rematerialization import rematerialized
from bench.contract.workloads.linear import batches_of, squared_error


@dataclass(frozen=True)
class Config:
    """Widths from the inputs to the outputs."""

    widths: tuple[int, int, int, int]


SIZES = {
    "tiny": lambda: Config((8, 16, 16, 4)),
    "base": lambda: Config((256, 1024, 1024, 256)),  # 1.6 million parameters
}
DEFAULT_SIZE = "base"


class MLP(nnx.Module):
    """Three linear layers with ReLU between them: (batch, widths[0]) to (batch, widths[3]).

    The columns of the first and the rows of the second may be sharded; the third is replicated.
    """

    def __init__(
        self, widths: tuple[int, int, int, int], dtypes: Precision, rngs: nnx.Rngs,
        axis: ModelAxis = WHOLE, remat: str = "",
    ) -> None:  # fmt: skip
        self.remat = remat
        inputs, width_1, width_2, outputs = widths
        part, common = axis.part(width_1), dtypes.of_layer(rngs)
        self.layers = nnx.List([
            nnx.Linear(inputs, part, **common),
            RowLinear((part,), width_2, dtypes=dtypes, rngs=rngs, axis=axis),
            nnx.Linear(width_2, outputs, **common),
        ])  # fmt: skip

    def __call__(self, x: jax.Array) -> jax.Array:
        call = rematerialized(lambda layer, x: nnx.relu(layer(x)), self.remat)
        *hidden, last = self.layers
        for layer in hidden:
            x = call(layer, x)
        return last(x)


AXIS_NAMES = {
    "layers/0/kernel": ("embed", "mlp"),
    "layers/0/bias": ("mlp",),
    "layers/1/product/kernel": ("mlp", "embed"),
}


def problem(config: Config, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return a problem with inputs (batch, widths[0]) and targets (batch, widths[-1])."""
    dtypes = PRECISIONS[precision]
    widths = config.widths
    planted = np.random.default_rng(0).normal(size=(widths[0], widths[-1])) / np.sqrt(widths[0])

    products = [wide * out for wide, out in pairwise(widths)]
    return Problem(
        make_model=lambda: MLP(widths, dtypes, nnx.Rngs(0), remat=remat),
        make_part=lambda axis: MLP(widths, dtypes, nnx.Rngs(0), axis=axis, remat=remat),
        axis_names=AXIS_NAMES,
        loss=squared_error,
        optimizer=optax.adamw(1e-3),
        batch=batches_of(planted, batch_size, dtypes.params),
        batch_size=batch_size,
        outline={
            "model": "mlp",
            "loss": "squared error",
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": 1e-4,
            },
            "compute": jnp.dtype(dtypes.compute).name,
            "remat": remat,
        },
        # Three products of 2mnk FLOPs per layer: forward, the kernel's gradient and the inputs'
        # gradient, which the first layer does not need.
        model_flops=batch_size * (6.0 * sum(products) - 2.0 * products[0]),
        units_per_step=batch_size,
    )
