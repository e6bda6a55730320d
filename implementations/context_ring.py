"""Context parallelism in a ring: keys and values travel past all queries, one device at a time.

The batch is split over `data` and each sequence over `context`; the state is replicated. In n - 1
turns, a ppermute passes every device's keys and values on to its neighbour, and each device folds
them into the softmax of its own queries (Liu et al. 2023, https://arxiv.org/abs/2310.01889). The
backward pass recomputes the scores, and the gradients of keys and values travel along, with one
last ppermute home. No device ever holds more than two devices' keys. In units of its keys (4 bytes
per value), a device sends 2 (n - 1) in the forward pass and 4 (n - 1) + 2 in the backward pass.
Gradients and the loss are all-reduced once over both axes.

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


def causal(scores: jax.Array) -> jax.Array:
    """Mask the scores of a device's own tokens, whose two pieces are in sequence order."""
    return jnp.where(jnp.tri(scores.shape[-1], dtype=bool), scores, -jnp.inf)


def add_keys(so_far: Any, query: jax.Array, key: jax.Array, value: jax.Array, mask: Any) -> Any:
    """Update an online softmax: its weighted values, sum of weights and largest score so far."""
    out, total, largest = so_far
    scores = mask(scores_of(query, key))
    top = jnp.maximum(largest, scores.max(-1, keepdims=True))
    weights, kept = jnp.exp(scores - top), jnp.exp(largest - top)
    out = kept * out + jnp.einsum("bhqk,bkhd->bhqd", weights, value)
    return out, kept * total + weights.sum(-1, keepdims=True), top


def forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, Any]:
    """Attend to all devices' tokens; return the outputs, and residuals for the backward pass."""
    half, rank = query.shape[1] // 2, jax.lax.axis_index("context")
    so_far = add_keys((0.0, 0.0, -jnp.inf), query, key, value, causal)

    def turn(carry: Any, number: jax.Array) -> tuple[Any, None]:
        (key, value), so_far = pass_on(carry[0]), carry[1]

        def of_earlier() -> Any:  # the sender's late keys come after all queries
            return add_keys(so_far, query, key[:, :half], value[:, :half], lambda x: x)

        def of_later() -> Any:  # only the late queries come after the sender's keys
            late = jax.tree.map(lambda x: x[:, :, half:], so_far)
            late = add_keys(late, query[:, half:], key, value, lambda x: x)
            return jax.tree.map(lambda x, y: x.at[:, :, half:].set(y), so_far, late)

        return ((key, value), jax.lax.cond(number <= rank, of_earlier, of_later)), None

    turns = jnp.arange(1, jax.lax.axis_size("context"))
    (_, (out, total, largest)), _ = jax.lax.scan(turn, ((key, value), so_far), turns)
    out /= total
    residuals = query, key, value, out, largest + jnp.log(total)
    return out.swapaxes(1, 2).astype(value.dtype), residuals


def backward(residuals: Any, d_result: jax.Array) -> Any:
    """Return the gradients of this device's queries, keys and values."""
    query, key, value, out, log_total = residuals
    half, rank = query.shape[1] // 2, jax.lax.axis_index("context")
    d_out = d_result.swapaxes(1, 2).astype(out.dtype)
    shift = (d_out * out).sum(-1, keepdims=True)

    def pairs(query: Any, key: Any, value: Any, rows: slice, mask: Any = lambda x: x) -> Any:
        """Return a scalar whose gradients are attention's, as in FlashAttention (Dao 2022)."""
        weights = jnp.exp(mask(scores_of(query[:, rows], key)) - log_total[:, :, rows])
        d_weights = jnp.einsum("bhqd,bkhd->bhqk", d_out[:, :, rows], value)
        return (weights * (d_weights - shift[:, :, rows])).sum()

    gradients = partial(jax.grad, argnums=(0, 1, 2))
    cases = (  # keys of an earlier device and of a later one, as in the forward pass
        lambda query, key, value: pairs(query, key[:, :half], value[:, :half], slice(None)),
        lambda query, key, value: pairs(query, key, value, slice(half, None)),
    )

    def turn(carry: Any, number: jax.Array) -> tuple[Any, None]:
        (key, value, *d_theirs), d_query = pass_on(carry[0]), carry[1]
        own, *theirs = jax.lax.cond(number <= rank, *map(gradients, cases), query, key, value)
        return ((key, value, *map(jnp.add, d_theirs, theirs)), d_query + own), None

    d_query, *d_own = gradients(pairs)(query, key, value, slice(None), causal)
    turns = jnp.arange(1, jax.lax.axis_size("context"))
    ((_, _, *d_own), d_query), _ = jax.lax.scan(turn, ((key, value, *d_own), d_query), turns)
    return d_query, *pass_on(d_own)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return divided_sequences.why_not_divided(problem, mesh, pieces=2)


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    attention = jax.custom_vjp(lambda *qkv: forward(*qkv)[0])
    attention.defvjp(forward, backward)
    return divided_sequences.context_parallel_step(problem, mesh, attention, zigzag_part)
