"""Context parallelism in a ring: keys and values travel past all queries, one device at a time.

The batch is split over `data` and each sequence over `context`; the state is replicated. In n - 1
turns, each device folds another's keys and values into the softmax of its own queries, while a
ppermute passes them on to its neighbour (Liu et al. 2023, https://arxiv.org/abs/2310.01889). The
backward pass recomputes the scores, and the gradients of keys and values travel along, with one
last ppermute home. A device holds its own keys, those in use and those that arrive. In units of its
keys (4 bytes per value), it sends 2 (n - 1) in the forward pass and 4 (n - 1) + 2 in the backward
pass. Gradients and the loss are all-reduced once over both axes.

A device holds an early and a late piece of the sequence (`zigzag_part`), because late tokens attend
to more. It computes all scores with its own keys, and in each turn only the causal half.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep, divided_sequences
from bench.contract.divided_sequences import scores_of, zigzag_part


def pass_on(tree: Any) -> Any:
    """Send arrays to the next device of the ring."""
    ways = jax.lax.axis_size("context")
    return jax.lax.ppermute(tree, "context", [(i, (i + 1) % ways) for i in range(ways)])


def around_the_ring(keys: Any, so_far: Any, fold: Any) -> Any:
    """Fold all other devices' keys into `so_far`; the next turn's travel while one computes."""

    def turn(number: jax.Array, carry: Any) -> tuple[Any, Any]:
        keys, so_far = carry
        return pass_on(keys), fold(so_far, number, *keys)

    if not (last := jax.lax.axis_size("context") - 1):
        return so_far
    keys, so_far = jax.lax.fori_loop(1, last, turn, (pass_on(keys), so_far))
    return fold(so_far, last, *keys)


def add_keys(so_far: Any, query: Any, key: Any, value: Any, visible: Any = True) -> Any:
    """Update an online softmax: its weighted values, sum of weights and largest score so far."""
    out, total, largest = so_far
    scores = jnp.where(visible, scores_of(query, key), -jnp.inf)
    top = jnp.maximum(largest, scores.max(-1, keepdims=True))
    weights, kept = jnp.exp(scores - top), jnp.exp(largest - top)
    out = kept * out + jnp.einsum("bhqk,bkhd->bhqd", weights.astype(value.dtype), value)
    return out, kept * total + weights.sum(-1, keepdims=True), top


def forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
    """Attend to all devices' tokens; return the outputs, and residuals for the backward pass."""
    half, rank = query.shape[1] // 2, jax.lax.axis_index("context")

    def fold(so_far: Any, number: Any, key: jax.Array, value: jax.Array) -> Any:
        def of_later() -> Any:  # only the late queries come after the sender's keys
            late = add_keys([x[:, :, half:] for x in so_far], query[:, half:], key, value)
            return jax.tree.map(lambda x, y: x.at[:, :, half:].set(y), so_far, late)

        # An earlier sender's late keys come after all queries.
        of_earlier = partial(add_keys, so_far, query, key[:, :half], value[:, :half])
        return jax.lax.cond(number <= rank, of_earlier, of_later)

    own = add_keys((0.0, 0.0, -jnp.inf), query, key, value, jnp.tri(2 * half) > 0)
    out, total, largest = around_the_ring((key, value), own, fold)
    out /= total
    residuals = query, key, value, out, largest + jnp.log(total)
    return out.swapaxes(1, 2).astype(value.dtype), residuals


def backward(residuals: Any, d_out: jax.Array) -> Any:
    """Return the gradients of this device's queries, keys and values."""
    # Without this barrier, XLA would keep keys that the forward pass received.
    (query, key, value, out, log_total), d_out = jax.lax.optimization_barrier((residuals, d_out))
    half, rank = query.shape[1] // 2, jax.lax.axis_index("context")
    d_out = d_out.swapaxes(1, 2)
    shift = (d_out * out).sum(-1, keepdims=True)

    def pairs(query: Any, key: Any, value: Any, rows: slice, visible: Any = True) -> Any:
        """Return a scalar whose gradients are attention's, as in FlashAttention (Dao 2022)."""
        scores = jnp.where(visible, scores_of(query[:, rows], key), -jnp.inf)
        d_weights = jnp.einsum("bhqd,bkhd->bhqk", d_out[:, :, rows], value)
        return (jnp.exp(scores - log_total[:, :, rows]) * (d_weights - shift[:, :, rows])).sum()

    gradients = partial(jax.grad, argnums=(0, 1, 2))
    of_earlier = gradients(lambda q, k, v: pairs(q, k[:, :half], v[:, :half], slice(None)))
    of_later = gradients(lambda q, k, v: pairs(q, k, v, slice(half, None)))

    def fold(so_far: Any, number: Any, key: jax.Array, value: jax.Array) -> Any:
        d_query, d_theirs = so_far
        own, *theirs = jax.lax.cond(number <= rank, of_earlier, of_later, query, key, value)
        return d_query + own, [*map(jnp.add, pass_on(d_theirs), theirs)]

    d_query, *d_own = gradients(pairs)(query, key, value, slice(None), jnp.tri(2 * half) > 0)
    d_query, d_own = around_the_ring((key, value), (d_query, d_own), fold)
    return d_query, *pass_on(d_own)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return divided_sequences.why_not_divided(problem, mesh, pieces=2)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    attention = jax.custom_vjp(lambda *qkv: forward(*qkv)[0])
    attention.defvjp(forward, backward)
    return divided_sequences.context_parallel_step(problem, mesh, attention, zigzag_part)
