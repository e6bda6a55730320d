"""Expert parallelism: a mixture-of-experts layer whose experts can be sharded over `expert`.

A model calls `mixture`. Each device applies all experts to its own tokens, unless the model is
traced in a step of `expert_parallel_step`.
"""

import math
from collections.abc import Callable
from contextvars import ContextVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.logical_axes import Rules, partition_specs, traced_with, undivided
from bench.contract.placement import create_sharded_state, shard_mapped_step, unknown_axes

AXES = ("data", "expert")
"""Both split the batch: outside the experts, `expert` is a further axis of data parallelism."""
Experts = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Maps inputs (batch, experts, slots, width) and kernels (experts, width, hidden) and (experts,
hidden, width) to outputs of the inputs' shape. In jax.shard_map, kernels are local shards."""


def compute_experts(inputs: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    """Apply each expert, a network with one hidden layer, to its slots; see `Experts`."""
    hidden = jnp.einsum("besw,ewh->besh", inputs, up.astype(inputs.dtype))
    hidden = jax.nn.gelu(hidden, approximate=True)
    return jnp.einsum("besh,ehw->besw", hidden, down.astype(inputs.dtype))


_experts: ContextVar[Experts] = ContextVar("experts", default=compute_experts)


def mixture(
    x: jax.Array, logits: jax.Array, up: jax.Array, down: jax.Array, choices: int
) -> tuple[jax.Array, jax.Array]:
    """Send each token to the experts with the largest logits, and add up their weighted outputs.

    Each expert has a capacity of choices x tokens / experts slots per sequence. First choices take
    slots before second choices, and earlier tokens before later ones; choices without a slot are
    dropped. Sequences are independent, like GShard's groups, so any split of the batch computes the
    same result (Lepikhin et al. 2020, https://arxiv.org/abs/2006.16668).

    Args:
      x: activations (batch, tokens, width).
      logits: the router's output (batch, tokens, experts).
      up: kernels (experts, width, hidden).
      down: kernels (experts, hidden, width).
      choices: number of experts per token.

    Returns:
      The outputs (batch, tokens, width), and the load-balancing loss, a mean over the batch that is
      1 for equal load (Fedus et al. 2021, https://arxiv.org/abs/2101.03961, equation 4).
    """
    tokens, experts = logits.shape[1:]
    slots = choices * tokens // experts
    share = jax.nn.softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))

    def slots_of(share: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return one sequence's weights and slots (choices x tokens,), and its balance."""
        weights, chosen = jax.lax.top_k(share, choices)
        weights = weights / weights.sum(-1, keepdims=True)
        taken = jax.nn.one_hot(chosen.T.reshape(-1), experts, dtype=jnp.int32)
        place = ((jnp.cumsum(taken, 0) - taken) * taken).sum(-1)
        slot = jnp.where(place < slots, chosen.T.reshape(-1) * slots + place, experts * slots)
        load = jax.nn.one_hot(chosen[:, 0], experts, dtype=share.dtype).mean(0)
        return weights.T.reshape(-1), slot, experts * (load * share.mean(0)).sum()

    def fill(x: jax.Array, slot: jax.Array) -> jax.Array:
        empty = jnp.zeros_like(x, shape=(experts * slots, x.shape[-1]))
        return empty.at[slot].add(jnp.tile(x, (choices, 1)), mode="drop")

    def take(filled: jax.Array, slot: jax.Array, weights: jax.Array) -> jax.Array:
        found = filled.at[slot].get(mode="fill", fill_value=0)
        return (found * weights[:, None]).reshape(choices, tokens, -1).sum(0)

    weights, slot, balance = jax.vmap(slots_of)(share)
    inputs = jax.vmap(fill)(x, slot).reshape(len(x), experts, slots, -1)
    outputs = _experts.get()(inputs, up, down).reshape(len(x), experts * slots, -1)
    return jax.vmap(take)(outputs, slot, weights.astype(x.dtype)), balance.mean()


def why_no_experts(problem: Problem, mesh: Mesh, rules: Rules, name: str) -> str | None:
    """Return why `expert` cannot shard the dimension with this logical name; None if it can."""
    return unknown_axes(mesh, *AXES) or undivided(problem, rules, mesh, name)


def expert_parallel_step(
    problem: Problem, mesh: Mesh, experts: Experts, rules: Rules = ()
) -> TrainStep:
    """Return the train step of a model whose experts' kernels are sharded by the rules.

    The batch is split over `data` and `expert`, and all else is replicated. Each gradient is summed
    over those of the two axes that do not shard its parameter. Inside jax.shard_map, `experts`
    applies the experts to this device's tokens.
    """
    loss_fn = problem.loss_function()
    shards = math.prod(mesh.shape[name] for name in AXES)

    def share_of_loss(params: Params, batch: Batch) -> jax.Array:
        with traced_with(_experts, experts):
            return loss_fn(params, batch) / shards

    value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
    state = create_sharded_state(problem, mesh, partition_specs(problem, rules, mesh))
    return shard_mapped_step(problem, mesh, state, AXES, value_and_grad, AXES)
