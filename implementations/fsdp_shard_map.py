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

import math
from functools import partial

import jax
from jax.sharding import Mesh

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.layer_stacks import loss_of_shards
from bench.contract.placement import (
    batch_axes,
    create_sharded_state,
    fsdp_specs,
    gather_for_use,
    keep_no_gathered,
    shard_axis,
    shard_mapped_step,
    unknown_axes,
    why_not_in_shards,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    reason = unknown_axes(mesh, *batch_axes(mesh))
    return reason or why_not_in_shards(problem, mesh, shard_axis(mesh))


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    axes, axis = batch_axes(mesh), shard_axis(mesh)
    shards_of_batch = math.prod(mesh.shape[name] for name in axes)
    specs = fsdp_specs(problem, mesh, axis)
    gather = partial(gather_for_use, axis)
    loss_fn = loss_of_shards(problem, problem.loss_function(), gather, specs)

    @partial(jax.checkpoint, policy=keep_no_gathered)
    def share_of_loss(shards: Params, batch: Batch) -> jax.Array:
        """Return this device's term of the mean loss; the terms' gradients add up."""
        return loss_fn(shards, batch) / shards_of_batch

    value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
    state = create_sharded_state(problem, mesh, specs)
    return shard_mapped_step(problem, mesh, state, axes, value_and_grad, axes)
