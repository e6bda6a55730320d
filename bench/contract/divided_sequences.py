"""Attention and positions, on whole sequences or on sequences that are sharded over `context`.

A model calls `attend` and `positions`. They cover the whole sequence, unless the model is traced in
a step of `context_parallel_step`; there they cover this device's shard.

On CUDA, causal attention uses a kernel of cuDNN that does not store the scores of all pairs of
tokens. It computes the softmax in float32.
"""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.logical_axes import traced_with
from bench.contract.placement import (
    own_shard,
    place_model_state_on_shards,
    shard_mapped_step,
    unknown_axes,
)

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Causal attention: maps queries, keys and values (batch, tokens, heads, head width) to outputs of
that shape."""

HALF_BYTES = 2
"""Bytes of a bfloat16 or float16."""
WIDEST_HEAD = 128
"""The widest head of cuDNN's kernel on every GPU."""


def cudnn_attention(query: jax.Array) -> Attention | None:
    """Return cuDNN's kernel for 16-bit queries (batch, tokens, heads, head width), or None."""
    width = query.shape[-1]
    fits = query.dtype.itemsize == HALF_BYTES and width % 8 == 0 and width <= WIDEST_HEAD
    if not fits or not cudnn_is_here():
        return None
    return partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")


@cache
def cudnn_is_here() -> bool:
    """Whether JAX finds cuDNN; without it, tracing cuDNN's attention fails."""
    probe: Any = jax.eval_shape(lambda: jnp.zeros((1, 64, 1, 64), jnp.bfloat16))
    attention = partial(jax.nn.dot_product_attention, implementation="cudnn")
    try:
        jax.eval_shape(attention, probe, probe, probe)
    except RuntimeError:  # "cuDNN is not detected."
        return False
    return True


def scores_of(query: jax.Array, key: jax.Array) -> jax.Array:
    """Return the scores (batch, heads, queries, keys) before the softmax, in float32 or better."""
    scores: jax.Array = jnp.einsum("bqhd,bkhd->bhqk", query, key) / query.shape[-1] ** 0.5
    return scores.astype(jnp.promote_types(scores.dtype, jnp.float32))


def causal_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, first: jax.Array | int = 0
) -> jax.Array:
    """Compute causal attention for queries whose first token is at position `first` of the keys.

    If cuDNN has a kernel for these arrays, the traced program has a branch for CUDA; lowering keeps
    one branch. Other platforms materialize the scores. So does the proof in float64, where the
    kernel's float32 softmax would lose digits.
    """
    fused = cudnn_attention(query) if query.shape == key.shape else None
    if fused is None:
        return _attention_by_scores(query, key, value, first)
    attention = partial(jax.lax.platform_dependent, cuda=fused, default=_attention_by_scores_twice)
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        spec = jax.typeof(query).sharding.spec  # cuDNN's gradients have no sharding in their types
        # Nothing is communicated.
        attention = jax.shard_map(attention, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)
    return attention(query, key, value)


def _attention_by_scores(
    query: jax.Array, key: jax.Array, value: jax.Array, first: jax.Array | int = 0
) -> jax.Array:
    visible = first + jnp.arange(query.shape[1])[:, None] >= jnp.arange(key.shape[1])
    scores = jnp.where(visible, scores_of(query, key), -jnp.inf)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


@jax.custom_vjp
def _attention_by_scores_twice(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Compute attention from materialized scores, and recompute the scores in the backward pass.

    Every branch of a conditional returns the residuals of all branches, as zeros where it has none,
    so residuals must be small. An enclosing jax.checkpoint's policy would override one here.
    """
    return _attention_by_scores(query, key, value)


_attention_by_scores_twice.defvjp(
    lambda *arrays: (_attention_by_scores(*arrays), arrays),
    lambda arrays, cotangent: jax.vjp(_attention_by_scores, *arrays)[1](cotangent),
)


_attention: ContextVar[Attention] = ContextVar("attention", default=causal_attention)
_positions: ContextVar[Callable[[int], jax.Array]] = ContextVar("positions", default=jnp.arange)


def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Compute causal attention; all arrays are (batch, tokens, heads, head width)."""
    return _attention.get()(query, key, value)


def positions(tokens: int) -> jax.Array:
    """Return the positions (tokens,), within the whole sequence, of the tokens at hand."""
    return _positions.get()(tokens)


def why_not_divided(
    problem: Problem, mesh: Mesh, pieces: int = 1, *, divide_heads: bool = False
) -> str | None:
    """Return why `context` cannot shard the sequence; None if it can.

    Each device gets `pieces` equal pieces. With `divide_heads`, the heads must divide evenly too.
    """
    reason = unknown_axes(mesh, "data", "context")
    if reason is not None or problem.sequence is None:
        return reason or "the workload declares no sequence to divide (`sequence`)"
    length, heads, ways = problem.sequence.length, problem.sequence.heads, mesh.shape["context"]
    if length % (ways * pieces):
        return f"{length} tokens do not divide evenly into {ways * pieces} parts"
    if divide_heads and heads % ways:
        return f"{heads} heads are not divisible by context={ways}"
    return None


def contiguous_part(array: jax.Array) -> jax.Array:
    """Return this device's part of an array (batch, length, ...): one run of tokens."""
    return own_shard("context", array, P(None, "context"))


def zigzag_part(array: jax.Array) -> jax.Array:
    """Return this device's part of an array (batch, length, ...): pieces i and 2n - 1 - i of 2n.

    Later tokens attend to more keys. Pairing an early piece with a late one gives every device the
    same work.
    """
    ways, rank = jax.lax.axis_size("context"), jax.lax.axis_index("context")
    size = array.shape[1] // (2 * ways)
    own = (rank, 2 * ways - 1 - rank)
    pieces = [jax.lax.dynamic_slice_in_dim(array, at * size, size, axis=1) for at in own]
    return jnp.concatenate(pieces, axis=1)


def context_parallel_step(
    problem: Problem, mesh: Mesh, attention: Attention, own_part: Callable[[Any], Any]
) -> TrainStep:
    """Return the train step of a replicated model whose sequences are divided over `context`.

    The batch is split over `data`, and each device computes the mean loss over its own tokens. The
    shards are equal, so one all-reduce over both axes combines the loss and the gradients.

    `own_part` maps an array (batch, length, ...) to this device's shard of it (batch, tokens, ...).
    `attention` attends from these tokens to all devices' tokens.
    """
    sequence, axes = problem.sequence, ("data", "context")
    assert sequence is not None, "the model has no sequence"  # noqa: S101
    of_part = replace(problem, loss=sequence.loss).loss_function()
    params = problem.draw()

    def own_positions(_: int) -> jax.Array:
        return own_part(jnp.arange(sequence.length)[None])[0]

    def share_of_loss(params: Params, batch: Batch) -> jax.Array:
        with traced_with(_attention, attention), traced_with(_positions, own_positions):
            own = jax.tree.map(own_part, sequence.split(batch))
            return of_part(params, own) / mesh.devices.size

    value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
    state = place_model_state_on_shards((params, problem.optimizer.init(params)), mesh)
    return shard_mapped_step(problem, mesh, state, "data", value_and_grad, axes)
