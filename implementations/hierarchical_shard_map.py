"""Data parallelism with a hierarchical all-reduce: little crosses the slow links between hosts.

The batch is split over `data` and `fsdp`, and the state is replicated. On a cluster, `data` counts
the hosts and `fsdp` the devices of a host, whose links are many times faster. The gradients and the
loss are one flat array (4 bytes per parameter), which three collectives sum: a reduce-scatter over
`fsdp` leaves each device of a host with one shard; an all-reduce over `data` sums these shards
between hosts, with 1/fsdp of a flat all-reduce's bytes per device; and an all-gather over `fsdp`
restores the whole array. On a mesh with one of the two axes, that axis takes the place of `fsdp`.

fsdp_shard_map moves the same bytes over `data` and keeps the state sharded over `fsdp` as well,
which is hybrid sharding (HSDP; Zhao et al. 2023, https://arxiv.org/abs/2304.11277).
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.placement import (
    batch_axes,
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    shard_axis,
    unknown_axes,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, *batch_axes(mesh))


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, loss_fn = problem.functional()
    axes, inner = batch_axes(mesh), shard_axis(mesh)
    outer = tuple(name for name in axes if name != inner)
    batch_sharding = create_data_parallel_sharding(mesh, axes)
    shards_of_batch = math.prod(mesh.shape[name] for name in axes)

    def share_of_loss(params: Params, batch: Batch) -> jax.Array:
        return loss_fn(params, batch) / shards_of_batch

    def total(tree: Any) -> Any:
        """Sum a tree over all devices, within a host first."""
        flat, unravel = ravel_pytree(tree)
        padded = jnp.pad(flat, (0, -flat.size % mesh.shape[inner]))
        part = jax.lax.psum_scatter(padded, inner, tiled=True)
        part = jax.lax.psum(part, outer) if outer else part
        return unravel(jax.lax.all_gather(part, inner, tiled=True, to="invarying")[: flat.size])

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(axes)), out_specs=P())
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
        loss, grads = total(value_and_grad(jax.lax.pcast(params, axes, to="varying"), batch))
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
