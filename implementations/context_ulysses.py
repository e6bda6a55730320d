"""Context parallelism by exchange (Ulysses): around attention, devices trade tokens for heads.

The batch is split over `data` and each sequence over `context`, one run of tokens per device; the
state is replicated. Every layer but attention works on single tokens and communicates nothing.
Before attention, one all-to-all gives each device all tokens of its share of the heads, which are
independent; after it, another gives each device all heads of its tokens (Jacobs et al. 2023,
https://arxiv.org/abs/2309.14509). With n devices along `context`, a device keeps 1/n of its
queries, keys, values and outputs and sends the rest: 4 (n - 1)/n times its activations (4 bytes per
value), and as much in the backward pass. From n = 3 on, this is less than gathering keys and
values. Gradients and the loss are all-reduced once over both axes.

Devices have equal work and compute no score twice. `context` must divide the heads evenly.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.contract.divided_sequences import (
    causal_attention,
    context_parallel_step,
    contiguous_part,
    why_not_divided,
)


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Attend to all devices' tokens; arrays are (batch, tokens, heads, head width)."""
    exchange = partial(jax.lax.all_to_all, axis_name="context", tiled=True)
    whole = exchange(jnp.stack([query, key, value]), split_axis=3, concat_axis=2)
    return exchange(causal_attention(*whole), split_axis=1, concat_axis=2)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_not_divided(problem, mesh, divide_heads=True)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    return context_parallel_step(problem, mesh, attention, contiguous_part)
