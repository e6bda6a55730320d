"""GPT-2 on byte tokens of Python's own documentation, with clipped AdamW.

The block is the published one: LayerNorm, causal multi-head attention and a 4x wide MLP with
tanh GELU, each added to the residual stream; the output layer shares the token embedding. At
size `124m` the parameter count is the published 124,439,808. There is no dropout.

The text is `pydoc_data.topics`, which every Python ships, so that it needs no download. A byte is
a token; `124m` keeps GPT-2's 50,257-row vocabulary for its cost and uses the first 256 rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from bench.contract import PRECISIONS, Precision, Problem


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int


def tiny() -> Config:
    """For tests."""
    return Config(layers=1, heads=2, width=16, context=16, vocabulary=256)


def nano() -> Config:
    """For a laptop's CPU."""
    return Config(layers=2, heads=4, width=64, context=64, vocabulary=256)


def gpt2_124m() -> Config:
    """The smallest published GPT-2, for an accelerator."""
    return Config(layers=12, heads=12, width=768, context=1024, vocabulary=50257)


SIZES = {"tiny": tiny, "nano": nano, "124m": gpt2_124m}
DEFAULT_SIZE = "nano"


class Attention(nnx.Module):
    """Causal multi-head attention: (batch, context, width) to the same."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs) -> None:
        shape = (config.heads, config.width // config.heads)
        common: Any = {"dtype": dtypes.compute, "param_dtype": dtypes.params, "rngs": rngs}
        self.qkv = nnx.LinearGeneral(
            config.width, (3, *shape), kernel_init=nnx.initializers.normal(0.02), **common
        )
        self.out = nnx.LinearGeneral(
            shape, config.width, axis=(-2, -1), kernel_init=residual_init(config), **common
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = jnp.unstack(self.qkv(x), axis=-3)
        return self.out(jax.nn.dot_product_attention(query, key, value, is_causal=True))


class Block(nnx.Module):
    """Attention, then an MLP, each on the normalized residual stream."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs) -> None:
        wide = 4 * config.width
        common: Any = {"dtype": dtypes.compute, "param_dtype": dtypes.params, "rngs": rngs}
        self.norm_1 = nnx.LayerNorm(config.width, epsilon=1e-5, **common)
        self.attention = Attention(config, dtypes, rngs)
        self.norm_2 = nnx.LayerNorm(config.width, epsilon=1e-5, **common)
        self.up = nnx.Linear(
            config.width, wide, kernel_init=nnx.initializers.normal(0.02), **common
        )
        self.down = nnx.Linear(wide, config.width, kernel_init=residual_init(config), **common)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(nnx.gelu(self.up(self.norm_2(x)), approximate=True))


class GPT2(nnx.Module):
    """Tokens (batch, context) to logits (batch, context, vocabulary)."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs) -> None:
        common: Any = {"dtype": dtypes.compute, "param_dtype": dtypes.params, "rngs": rngs}
        init = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(config.vocabulary, config.width, embedding_init=init, **common)
        self.positions = nnx.Embed(config.context, config.width, embedding_init=init, **common)
        self.blocks = nnx.List(Block(config, dtypes, rngs) for _ in range(config.layers))
        self.norm = nnx.LayerNorm(config.width, epsilon=1e-5, **common)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.tokens.attend(self.norm(x))


def residual_init(config: Config) -> nnx.Initializer:
    """GPT-2's smaller start for the layers that write to the residual stream."""
    return nnx.initializers.normal(0.02 / np.sqrt(2 * config.layers))


def next_token_loss(model: Any, tokens: jax.Array) -> jax.Array:
    """Mean cross-entropy of each next token; `tokens` is (batch, context + 1)."""
    logits = model(tokens[:, :-1])
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@cache
def text() -> np.ndarray:
    """Python's documentation topics as bytes, (about 700,000,)."""
    return np.frombuffer("\n\n".join(topics.values()).encode(), np.uint8)


def problem(config: Config, batch_size: int, precision: str) -> Problem:
    """Batches are windows of text at random places, int32 (batch, context + 1)."""
    dtypes = PRECISIONS[precision]

    def batch(index: int) -> np.ndarray:
        starts = np.random.default_rng((0, index)).integers(
            len(text()) - config.context, size=(batch_size, 1)
        )
        return text()[starts + np.arange(config.context + 1)].astype(np.int32)

    tokens = batch_size * config.context
    matrices = 12 * config.layers * config.width**2 + config.vocabulary * config.width
    attention = 12 * config.layers * config.width * config.context
    return Problem(
        make_model=lambda: GPT2(config, dtypes, nnx.Rngs(0)),
        loss=next_token_loss,
        optimizer=optax.chain(
            optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
        ),
        batch=batch,
        batch_size=batch_size,
        # PaLM's count (Chowdhery et al. 2022, appendix B): 6 a matrix parameter and token, and 12
        # a layer, width and position of attention, with no discount for the causal mask.
        model_flops=float(tokens * (6 * matrices + attention)),
        units_per_step=tokens,
        unit="tokens",
    )
