"""FSDP by hand: shards are all-gathered for use, gradients reduce-scattered, under jax.shard_map.

Every parameter and what the optimizer keeps of it is divided along its largest dimension over
`fsdp` (over `data`, where a mesh has no `fsdp`); the batch is split over `data` and `fsdp`. Each
parameter is all-gathered where the loss uses it (4 bytes of each), and a policy of jax.checkpoint
asks for that again in the backward pass, so that it need not be kept (XLA:CPU keeps it all the
same). The transpose of all_gather is psum_scatter: its gradient comes out reduce-scattered. Arrays
that do not divide are replicated, and their gradients all-reduced; so are those of shards over
`data`, where a mesh has it beside `fsdp`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import optax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.placement import (
    batch_axes,
    create_data_parallel_sharding,
    create_sharded_state,
    fsdp_specs,
    place_batch_on_shards,
    unknown_axes,
)

WHOLE = "whole parameter"


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, *(batch_axes(mesh) or ("data",)))


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function()
    axes = batch_axes(mesh)
    shard_axis = axes[-1]
    shards_of_batch = math.prod(mesh.shape[axis] for axis in axes)
    batch_sharding = create_data_parallel_sharding(mesh, axes)
    specs = fsdp_specs(problem, mesh)
    state = create_sharded_state(problem, mesh, specs)
    state_specs = jax.tree.map(lambda x: x.sharding.spec, state)

    def gather(shard: jax.Array, spec: P) -> jax.Array:
        if shard_axis not in spec:
            return shard
        whole = jax.lax.all_gather(shard, shard_axis, axis=spec.index(shard_axis), tiled=True)
        return checkpoint_name(whole, WHOLE)

    @partial(jax.checkpoint, policy=jax.checkpoint_policies.save_anything_except_these_names(WHOLE))
    def share_of_loss(shards: Params, batch: Batch) -> jax.Array:
        """This device's part of the mean over all devices: the parts' gradients add up."""
        return loss_fn(jax.tree.map(gather, shards, specs), batch) / shards_of_batch

    def left(spec: P) -> tuple[str, ...]:
        """The axes over which gradients still have to be summed."""
        return tuple(axis for axis in axes if axis not in spec)

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
