"""FSDP by hand: shards are all-gathered for use, gradients reduce-scattered, under jax.shard_map.

Every parameter and what the optimizer keeps of it is divided along its largest dimension over
`fsdp` (over `data`, where a mesh has no `fsdp`); the batch is split over `data` and `fsdp`. Each
parameter is all-gathered where the loss uses it (4 bytes of each), and again where the backward
pass does: a policy of jax.checkpoint lets no whole parameter be kept in between (the XLA of jax
0.10 keeps it on CPU all the same). The transpose of all_gather is psum_scatter: its gradient comes
out reduce-scattered, for every microbatch. Arrays that do not divide are replicated, and their
gradients all-reduced; so are those of shards over `data`, where a mesh has it beside `fsdp`.
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
from bench.contract.placement import (
    batch_axes,
    create_data_parallel_sharding,
    create_sharded_state,
    fsdp_specs,
    place_batch_on_shards,
    shard_axis,
    unknown_axes,
)

NOT_KEPT = {"all_gather", "convert_element_type", "transpose", "reshape"}
"""What makes a parameter whole, and other forms of a whole one."""


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, *(batch_axes(mesh) or ("data",)))


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function()
    axes = batch_axes(mesh)
    axis = shard_axis(mesh)
    shards_of_batch = math.prod(mesh.shape[name] for name in axes)
    batch_sharding = create_data_parallel_sharding(mesh, axes)
    specs = fsdp_specs(problem, mesh, axis)
    state = create_sharded_state(problem, mesh, specs)
    state_specs = jax.tree.map(lambda x: x.sharding.spec, state)

    def gather(shard: jax.Array, spec: P) -> jax.Array:
        if axis not in spec:
            return shard
        return jax.lax.all_gather(shard, axis, axis=spec.index(axis), tiled=True)

    def keep(primitive: Any, *_: Any, **__: Any) -> bool:
        return primitive.name not in NOT_KEPT

    @partial(jax.checkpoint, policy=keep)
    def share_of_loss(shards: Params, batch: Batch) -> jax.Array:
        """This device's part of the mean over all devices: the parts' gradients add up."""
        return loss_fn(jax.tree.map(gather, shards, specs), batch) / shards_of_batch

    def left(spec: P) -> tuple[str, ...]:
        """The axes over which gradients still have to be summed."""
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
