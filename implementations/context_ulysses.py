"""Context parallelism by exchange (Ulysses): around attention, devices trade tokens for heads.

The batch is split over `data` and each sequence over `context`, one run of tokens a device; the
state is replicated. Every layer but attention works on single tokens and needs nothing from other
devices. Before attention, one all-to-all gives each device all tokens of its share of the heads,
which are independent of one another; after it, another gives back all heads of its tokens (Jacobs
et al. 2023, https://arxiv.org/abs/2309.14509). With n devices along `context`, a device keeps 1/n
of the queries, keys, values and outputs and sends the rest: 4 (n - 1)/n of its own activations (4
bytes per value), and the same in the backward pass, less than gathering keys and values from n = 3
on. Gradients and the loss are all-reduced once over both axes.

Devices have equal work and compute no score twice. The heads must divide evenly.
"""

from __future__ import annotations

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
    """Attend to the tokens of all devices; arrays are (batch, tokens, heads, head width)."""
    exchange = partial(jax.lax.all_to_all, axis_name="context", tiled=True)
    whole = exchange(jnp.stack([query, key, value]), split_axis=3, concat_axis=2)
    return exchange(causal_attention(*whole), split_axis=1, concat_axis=2)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_not_divided(problem, mesh, divide_heads=True)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    return context_parallel_step(problem, mesh, attention, contiguous_part)
