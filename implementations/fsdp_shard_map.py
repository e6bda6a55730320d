"""FSDP by hand: jax.shard_map all-gathers parameters for use and reduce-scatters gradients.

Each parameter and its optimizer state are sharded along the largest dimension over `fsdp` (over
`data` if the mesh has no `fsdp`); the batch is split over `data` and `fsdp`. Each parameter is
all-gathered where the loss uses it (4 bytes per element), and again in the backward pass, because a
jax.checkpoint policy forbids saving whole parameters (XLA:CPU of jax 0.10 saves them anyway). That
policy takes precedence over those of `--remat`. The transpose of all_gather is psum_scatter, so
gradients come out reduce-scattered, for every microbatch. Arrays that do not divide evenly are
replicated, and their gradients are all-reduced. On a mesh with both `data` and `fsdp`, the shards'
gradients are also all-reduced over `data`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.layer_stacks import loss_of_shards
from bench.contract.placement import (
    batch_axes,
    create_data_parallel_sharding,
    create_sharded_state,
    fsdp_specs,
    gather_for_use,
    keep_no_gathered,
    place_batch_on_shards,
    shard_axis,
    unknown_axes,
    why_not_in_shards,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    reason = unknown_axes(mesh, *(batch_axes(mesh) or ("data",)))
    return reason or why_not_in_shards(problem, mesh, shard_axis(mesh))


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function()
    axes = batch_axes(mesh)
    axis = shard_axis(mesh)
    shards_of_batch = math.prod(mesh.shape[name] for name in axes)
    batch_sharding = create_data_parallel_sharding(mesh, axes)
    specs = fsdp_specs(problem, mesh, axis)
    state = create_sharded_state(problem, mesh, specs)
    of_shards = loss_of_shards(problem, loss_fn, partial(gather_for_use, axis), specs)
    state_specs = jax.tree.map(lambda x: x.sharding.spec, state)

    @partial(jax.checkpoint, policy=keep_no_gathered)
    def share_of_loss(shards: Params, batch: Batch) -> jax.Array:
        """Return this device's term of the mean loss; the terms' gradients add up."""
        return of_shards(shards, batch) / shards_of_batch

    def left(spec: P) -> tuple[str, ...]:
        """Return the axes over which gradients must still be summed."""
        return tuple(name for name in axes if name not in spec)

    @partial(jax.jit, donate_argnums=0)
    @partial(
        jax.shard_map, mesh=mesh, in_specs=(state_specs, P(axes)), out_specs=(state_specs, P())
    )
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        shards, opt_state = state
        own = jax.tree.map(lambda x, s: jax.lax.pcast(x, left(s), to="varying"), shards, specs)
        value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
        loss, grads = value_and_grad(own, batch)
        grads = jax.tree.map(lambda x, spec: jax.lax.psum(x, left(spec)), grads, specs)
        updates, opt_state = problem.optimizer.update(grads, opt_state, shards)
        return (optax.apply_updates(shards, updates), opt_state), jax.lax.psum(loss, axes)

    return TrainStep(
        state=state,
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
