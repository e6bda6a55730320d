"""GPT-2 with a mixture of 8 experts, two per token, in place of each MLP.

Attention, embeddings, data and the optimizer are the same as in `gpt2`. A router in float32 or
better chooses each token's experts, whose capacity is limited (bench.contract.expert_layers). The
loss includes 0.01 times the load-balancing loss, as in the Switch Transformer.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bench.contract import PRECISIONS, WHOLE, ModelAxis, Precision, Problem
from bench.contract.expert_layers import mixture
from bench.contract.layer_stacks import run_layers
from bench.contract.workloads import gpt2

CHOICES = 2
BALANCE = 0.01


@dataclass(frozen=True)
class Config(gpt2.Config):
    """Sizes of the model."""

    experts: int = 8


SIZES = {
    "tiny": lambda: Config(layers=1, heads=2, width=16, context=16, vocabulary=256),
    "nano": lambda: Config(layers=2, heads=4, width=64, context=64, vocabulary=256),
}
DEFAULT_SIZE = "nano"


class Block(nnx.Module):
    """Attention and then the experts, each on the normalized residual stream."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs, axis: ModelAxis) -> None:
        wide, common = 4 * config.width, dtypes.of_layer(rngs)
        self.norm_1 = nnx.LayerNorm(config.width, epsilon=1e-5, **common)
        self.attention = gpt2.Attention(config, dtypes, rngs, axis)
        self.norm_2 = nnx.LayerNorm(config.width, epsilon=1e-5, **common)
        self.router = nnx.Linear(
            config.width, config.experts, use_bias=False, kernel_init=gpt2.NORMAL,
            **{**common, "dtype": jnp.promote_types(dtypes.compute, jnp.float32)},
        )  # fmt: skip

        def kernel(inputs: int, outputs: int) -> "nnx.Param[jax.Array]":
            shape = (config.experts, inputs, outputs)
            return nnx.Param(gpt2.NORMAL(rngs.params(), shape, dtypes.params))

        self.up, self.down = kernel(config.width, wide), kernel(wide, config.width)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x + self.attention(self.norm_1(x))
        own = self.norm_2(x)
        mixed, balance = mixture(own, self.router(own), self.up[...], self.down[...], CHOICES)
        return x + mixed, balance


class MoE(gpt2.GPT2):
    """Maps tokens (batch, context) to the last block's output and the blocks' mean balance."""

    block = Block

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, balances = run_layers(self.blocks, Block.__call__, self.embed(tokens), self.remat)
        return x, balances.mean()


AXIS_NAMES = {
    name: names for name, names in gpt2.AXIS_NAMES.items() if not name.startswith(("up", "down"))
} | {"up": ("expert", "embed", "mlp"), "down": ("expert", "mlp", "embed")}


def loss(model: Any, tokens: jax.Array) -> jax.Array:
    """Return the mean next-token cross-entropy plus the weighted balance; see `gpt2`."""
    inputs, labels = gpt2.with_labels(tokens)
    x, balance = model(inputs)
    return model.loss(x, labels) + BALANCE * balance


def problem(
    config: Config, batch_size: int, precision: str, remat: str = "", scan_layers: bool = False
) -> Problem:
    """Return a problem with the batches of `gpt2`, int32 (batch, context + 1)."""
    dtypes, dense = PRECISIONS[precision], gpt2.problem(config, batch_size, precision)
    router = config.width * config.experts
    further = config.layers * (router + 8 * (CHOICES - 1) * config.width**2)
    return replace(
        dense,
        make_model=lambda: MoE(config, dtypes, nnx.Rngs(0), WHOLE, remat, scan_layers),
        make_part=None,
        make_stages=None,
        sequence=None,
        axis_names=AXIS_NAMES,
        stacked="blocks" if scan_layers else "",
        loss=loss,
        outline={},
        # FLOPs of gpt2, of the router, and of each token's experts after the first.
        model_flops=dense.model_flops + 6.0 * dense.units_per_step * further,
    )
