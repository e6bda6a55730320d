"""Context parallelism by gathering: every device's queries attend to all devices' keys and values.

The batch is split over `data` and each sequence over `context`, one run of tokens per device; the
state is replicated. Every layer but attention works on single tokens and communicates nothing.
Attention all-gathers the keys and values of the sequence (4 bytes per value each), and in the
backward pass a reduce-scatter (psum_scatter) brings their gradients back, as in Llama 3 (Dubey et
al. 2024, https://arxiv.org/abs/2407.21783). Gradients and the loss are all-reduced once over both
axes.

With n devices along `context`, activations and attention scores take 1/n of the memory; gathered
keys and values are kept for the backward pass. Every device computes the scores of its queries with
all keys and masks the later ones, so devices have equal work, and half of it is wasted.
"""

import jax
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
    first = jax.lax.axis_index("context") * query.shape[1]
    key, value = jax.lax.all_gather((key, value), "context", axis=1, tiled=True)
    return causal_attention(query, key, value, first)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return why_not_divided(problem, mesh)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    return context_parallel_step(problem, mesh, attention, contiguous_part)
