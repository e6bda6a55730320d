"""jax.shard_map with bucketed all-reduces: gradients are reduced in parts, last layers first.

A single all-reduce of all gradients can begin only when the last gradient is ready. This step
reduces them in buckets of up to BUCKET_BYTES, in the order in which the backward pass produces
them, so most communication can overlap with that pass, as in PyTorch's DDP (Li et al. 2020,
https://arxiv.org/abs/2006.15704). The volume is the same (4 bytes per parameter, plus the loss).
Barriers keep XLA from combining the buckets again (XLA:CPU of jax 0.10 drops them). With several
microbatches, all gradients become ready together at the end, and nothing is left to overlap with.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, StateLossFn, TrainStep
from bench.contract.model_state import ModelState
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)

BUCKET_BYTES = 4 * 2**20

STATISTICS = ("synchronized", "local")


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, model_state, loss_fn = problem.functional_with_state("data")
    batch_sharding = create_data_parallel_sharding(mesh, "data")

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, old_state = state
        own_params = jax.lax.pcast(params, "data", to="varying")
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(own_params, old_state, batch)
        grads = mean_in_buckets(grads, backward_order(loss_fn, own_params, old_state, batch))
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        new_state = optax.apply_updates(params, updates), opt_state, model_state
        return new_state, jax.lax.pmean(loss, "data")

    state = params, problem.optimizer.init(params), model_state
    return TrainStep(
        state=place_model_state_on_shards(state, mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )


def backward_order(
    loss_fn: StateLossFn, params: Params, model_state: ModelState, batch: Batch
) -> list[int]:
    """Return indices of the parameters' leaves in the order in which their gradients are traced."""
    gradients = jax.grad(loss_fn, has_aux=True)
    traced = jax.make_jaxpr(gradients)(params, model_state, batch).jaxpr
    made = {id(out): number for number, step in enumerate(traced.eqns) for out in step.outvars}
    leaves = range(len(jax.tree.leaves(params)))
    return sorted(leaves, key=lambda leaf: made.get(id(traced.outvars[leaf]), 0))


def mean_in_buckets(gradients: Params, order: list[int]) -> Params:
    """Average over `data`, bucket by bucket; each bucket waits for the previous one."""
    leaves, structure = jax.tree.flatten(gradients)
    reduced: dict[int, jax.Array] = {}
    last = None
    for bucket in buckets(order, [leaf.nbytes for leaf in leaves]):
        own = [leaves[index] for index in bucket]
        if last is not None:
            own, _ = jax.lax.optimization_barrier((own, last))
        means = jax.lax.pmean(own, "data")
        reduced |= zip(bucket, means, strict=True)
        last = means[-1]
    return jax.tree.unflatten(structure, [reduced[index] for index in range(len(leaves))])


def buckets(order: list[int], sizes: list[int]) -> list[list[int]]:
    """Split leaf indices, in order, into buckets of up to BUCKET_BYTES or a single leaf."""
    parts: list[list[int]] = []
    filled = BUCKET_BYTES
    for index in order:
        if filled + sizes[index] > BUCKET_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(index)
        filled += sizes[index]
    return parts
