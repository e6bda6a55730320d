"""jax.shard_map with bucketed all-reduces: gradients are reduced in parts, last layers first.

One all-reduce of all gradients can begin only when the last of them is made. Here they are reduced
in buckets of up to BUCKET_BYTES, in the order in which the backward pass makes them (the reverse of
the parameters'), so that most of the communication may go on beside it, as in PyTorch's DDP (Li et
al. 2020, https://arxiv.org/abs/2006.15704). As much is communicated (4 bytes a parameter, and the
loss). Barriers keep XLA from combining the buckets again (that of jax 0.10 drops them on CPU).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)

BUCKET_BYTES = 4 * 2**20


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, loss_fn = problem.functional()
    batch_sharding = create_data_parallel_sharding(mesh, "data")

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        own_params = jax.lax.pcast(params, "data", to="varying")
        loss, grads = problem.over_microbatches(jax.value_and_grad(loss_fn))(own_params, batch)
        grads = mean_in_buckets(grads)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        new_state = optax.apply_updates(params, updates), opt_state
        return new_state, jax.lax.pmean(loss, "data")

    return TrainStep(
        state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )


def mean_in_buckets(gradients: Params) -> Params:
    """The mean over `data`, a bucket after the other: each waits for the one before."""
    leaves, structure = jax.tree.flatten(gradients)
    reduced: dict[int, jax.Array] = {}
    for bucket in buckets([leaf.nbytes for leaf in leaves]):
        own = [leaves[index] for index in bucket]
        if reduced:
            own, _ = jax.lax.optimization_barrier((own, reduced[min(reduced)]))
        reduced |= zip(bucket, jax.lax.pmean(own, "data"), strict=True)
    return jax.tree.unflatten(structure, [reduced[index] for index in range(len(leaves))])


def buckets(sizes: list[int]) -> list[list[int]]:
    """Indices of arrays of these sizes in bytes, from the last, in parts of up to BUCKET_BYTES."""
    parts: list[list[int]] = []
    filled = BUCKET_BYTES
    for index in reversed(range(len(sizes))):
        if filled + sizes[index] > BUCKET_BYTES:
            parts.append([])
            filled = 0
        parts[-1].append(index)
        filled += sizes[index]
    return parts
