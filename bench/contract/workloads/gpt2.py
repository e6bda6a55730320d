"""GPT-2 on byte tokens of Python's own documentation, with clipped AdamW.

The block is the published one: LayerNorm, causal multi-head attention, and an MLP of four times the
width with tanh GELU, each added to the residual stream. The output layer shares the token
embedding. At size `124m` the model has the published 124,439,808 parameters, and 47 further rows of
the embedding that belong to no token (bench.contract.layers). There is no dropout.

The text is `pydoc_data.topics`, which ships with Python, so nothing is downloaded. Each byte is a
token; `124m` keeps GPT-2's vocabulary of 50,257 tokens for its cost and uses the first 256.
"""

from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pydoc_data.topics import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from numpy.lib.stride_tricks import sliding_window_view

from bench.contract import (
    PRECISIONS,
    WHOLE,
    ModelAxis,
    Params,
    Precision,
    Problem,
    Stages,
    TokenSequence,
)
from bench.contract.clipping import clip_by_global_norm
from bench.contract.divided_sequences import attend, positions
from bench.contract.layer_stacks import make_layers, run_layers
from bench.contract.layers import RowLinear, Vocabulary
from bench.contract.logical_axes import constrain
from bench.contract.rematerialization import POLICIES


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    layers: int
    heads: int
    width: int
    context: int
    vocabulary: int


SIZES = {
    "tiny": lambda: Config(layers=1, heads=2, width=16, context=16, vocabulary=256),
    # For a laptop's CPU.
    "nano": lambda: Config(layers=2, heads=4, width=64, context=64, vocabulary=256),
    # For sequences sharded over devices.
    "nano-512": lambda: Config(layers=2, heads=8, width=64, context=512, vocabulary=256),
    "nano-2048": lambda: Config(layers=2, heads=8, width=64, context=2048, vocabulary=256),
    # For pipelines of up to eight stages.
    "deep": lambda: Config(layers=8, heads=4, width=64, context=64, vocabulary=256),
    # The smallest published GPT-2, for an accelerator.
    "124m": lambda: Config(layers=12, heads=12, width=768, context=1024, vocabulary=50257),
}
DEFAULT_SIZE = "nano"
NORMAL = nnx.initializers.normal(0.02)


class Attention(nnx.Module):
    """Causal multi-head attention that keeps (batch, context, width); heads may be sharded."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs, axis: ModelAxis) -> None:
        shape = (axis.part(config.heads), config.width // config.heads)
        self.qkv = nnx.LinearGeneral(
            config.width, (3, *shape), kernel_init=NORMAL, **dtypes.of_layer(rngs)
        )
        self.out = residual(shape, config, dtypes, rngs, axis)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.out(attend(*jnp.unstack(self.qkv(x), axis=-3)))


class Block(nnx.Module):
    """Attention and then an MLP, each on the normalized residual stream."""

    def __init__(self, config: Config, dtypes: Precision, rngs: nnx.Rngs, axis: ModelAxis) -> None:
        wide = axis.part(4 * config.width)
        common = dtypes.of_layer(rngs)
        self.norm_1 = nnx.LayerNorm(config.width, epsilon=1e-5, **common)
        self.attention = Attention(config, dtypes, rngs, axis)
        self.norm_2 = nnx.LayerNorm(config.width, epsilon=1e-5, **common)
        self.up = nnx.Linear(config.width, wide, kernel_init=NORMAL, **common)
        self.down = residual((wide,), config, dtypes, rngs, axis)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = constrain(x + self.attention(self.norm_1(x)), ACTIVATIONS)
        up = nnx.gelu(self.up(self.norm_2(x)), approximate=True)
        return constrain(x + self.down(up), ACTIVATIONS)


class GPT2(nnx.Module):
    """Maps tokens (batch, context) to the output layer's input (batch, context, width)."""

    block: Any = Block

    def __init__(
        self, config: Config, dtypes: Precision, rngs: nnx.Rngs,
        axis: ModelAxis = WHOLE, remat: str = "", scan_layers: bool = False,
    ) -> None:  # fmt: skip
        self.remat = remat
        common = dtypes.of_layer(rngs)
        self.tokens = Vocabulary(
            config.vocabulary, config.width, embedding_init=NORMAL, dtypes=dtypes, rngs=rngs,
            axis=axis,
        )  # fmt: skip
        self.positions = nnx.Embed(config.context, config.width, embedding_init=NORMAL, **common)
        self.blocks = make_layers(
            lambda: self.block(config, dtypes, rngs, axis), config.layers, stacked=scan_layers
        )
        self.norm = nnx.LayerNorm(config.width, epsilon=1e-5, **common)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """Return the first block's input."""
        x = self.tokens(tokens) + self.positions(positions(tokens.shape[-1]))
        return constrain(x, ACTIVATIONS)

    def loss(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the labels' mean cross-entropy from the last block's output."""
        return self.tokens.cross_entropy(self.norm(x), labels)

    def __call__(self, tokens: jax.Array) -> Any:
        x = self.embed(tokens)
        return run_layers(self.blocks, lambda block, x: (block(x), None), x, self.remat)[0]


ACTIVATIONS = ("batch", None, "embed")
AXIS_NAMES = {
    "tokens/table/embedding": ("vocab", "embed"),
    "positions/embedding": (None, "embed"),
    "qkv/kernel": ("embed", None, "heads", None),
    "qkv/bias": (None, "heads", None),
    "out/product/kernel": ("heads", None, "embed"),
    "up/kernel": ("embed", "mlp"),
    "up/bias": ("mlp",),
    "down/product/kernel": ("mlp", "embed"),
}


def residual(
    inputs: tuple[int, ...], config: Config, dtypes: Precision, rngs: nnx.Rngs, axis: ModelAxis
) -> RowLinear:
    """Return a layer that writes to the residual stream, with GPT-2's smaller initializer."""
    init = nnx.initializers.normal(0.02 / np.sqrt(2 * config.layers))
    return RowLinear(inputs, config.width, dtypes=dtypes, rngs=rngs, axis=axis, kernel_init=init)


def with_labels(tokens: Any) -> tuple[Any, Any]:
    """Split (batch, context + 1) into inputs and next-token labels, both (batch, context)."""
    return tokens[:, :-1], tokens[:, 1:]


def loss_of_labels(model: Any, parts: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Return the labels' mean cross-entropy; `parts` is the result of `with_labels`."""
    tokens, labels = parts
    return model.loss(model(tokens), labels)


def stages(config: Config, dtypes: Precision, axis: ModelAxis, *, remat: str) -> Stages:
    """Return the model, or one device's shard of it, as a chain."""
    none = replace(config, layers=0)
    ends, _ = nnx.split(nnx.eval_shape(lambda: GPT2(none, dtypes, nnx.Rngs(0), axis)))
    block, _ = nnx.split(nnx.eval_shape(lambda: Block(config, dtypes, nnx.Rngs(0), axis)))

    def run_block(params: Params, x: jax.Array) -> jax.Array:
        return nnx.merge(block, params)(x)

    return Stages(
        first=lambda params, tokens: nnx.merge(ends, params).embed(tokens[:, :-1]),
        block=jax.checkpoint(run_block, policy=POLICIES[remat]) if remat else run_block,
        last=lambda params, x, tokens: nnx.merge(ends, params).loss(x, tokens[:, 1:]),
    )


@cache
def text() -> np.ndarray:
    """Return Python's documentation topics as bytes, about 500,000 of them."""
    return np.frombuffer("\n\n".join(topics.values()).encode(), np.uint8)


def problem(
    config: Config, batch_size: int, precision: str, remat: str = "", scan_layers: bool = False
) -> Problem:
    """Return a problem whose batches are random windows of text, int32 (batch, context + 1)."""
    dtypes = PRECISIONS[precision]
    windows = sliding_window_view(text().astype(np.int32), config.context + 1)

    def make(axis: ModelAxis) -> GPT2:
        return GPT2(config, dtypes, nnx.Rngs(0), axis, remat, scan_layers)

    def batch(index: int) -> np.ndarray:
        return windows[np.random.default_rng((0, index)).integers(len(windows), size=batch_size)]

    tokens = batch_size * config.context
    matrices = 12 * config.layers * config.width**2 + config.vocabulary * config.width
    attention = 12 * config.layers * config.width * config.context
    return Problem(
        make_model=partial(make, WHOLE),
        make_part=make,
        axis_names=AXIS_NAMES,
        stacked="blocks" if scan_layers else "",
        make_stages=lambda axis: stages(config, dtypes, axis, remat=remat),
        sequence=TokenSequence(
            length=config.context, heads=config.heads, split=with_labels, loss=loss_of_labels
        ),
        loss=lambda model, tokens: loss_of_labels(model, with_labels(tokens)),
        optimizer=optax.chain(
            clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
        ),
        batch=batch,
        batch_size=batch_size,
        # The last token of a sample is the first of the next: all but the first are predicted once.
        records=windows[:: config.context],
        outline={
            "model": "gpt2",
            "sizes": asdict(config),
            "loss": "next token",
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "betas": [0.9, 0.95],
                "eps": 1e-8,
                "weight_decay": 0.1,
                "clip_norm": 1.0,
            },
            "compute": jnp.dtype(dtypes.compute).name,
            "remat": remat,
            "scan_layers": scan_layers,
        },
        # PaLM's count (Chowdhery et al. 2022, appendix B): 6 per matrix parameter and token, plus
        # 12 per layer, width and position for attention, with no discount for the causal mask.
        model_flops=float(tokens * (6 * matrices + attention)),
        units_per_step=tokens,
        unit="tokens",
    )
