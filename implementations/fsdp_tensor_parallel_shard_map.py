"""FSDP and tensor parallelism by hand: parameters are gathered over one axis, sharded over another.

This is the mesh on which large models are trained. The layers' widths are sharded over `model`, as
in tensor_parallel_shard_map, and each parameter and its optimizer state are also sharded over
`fsdp` (over `data` if the mesh has no `fsdp`), along the largest remaining dimension. The batch is
split over `data` and `fsdp`.

Over `fsdp`, each device all-gathers its shard of a layer where the loss uses it (4 bytes per
element, 1/model of the parameters), and again in the backward pass; gradients come out
reduce-scattered, for every microbatch. Over `model`, activations are all-reduced twice per block in
the forward and twice in the backward pass. On a mesh with both `data` and `fsdp`, the shards'
gradients are also all-reduced over `data`. Gradients of unsharded arrays are all-reduced over both.
"""

import math
from functools import partial

import jax
from jax.sharding import Mesh

from bench.contract import Batch, ModelAxis, Params, Problem, TrainStep
from bench.contract.layer_stacks import loss_of_shards
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
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
    if problem.make_part is None:
        return "the model has no per-device version (`make_part`)"
    reason = unknown_axes(mesh, *batch_axes(mesh), "model") or undivided(
        problem, TENSOR_PARALLEL, mesh, "mlp", "heads"
    )
    return reason or why_not_in_shards(problem, mesh, shard_axis(mesh), "model")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    axes, axis = batch_axes(mesh), shard_axis(mesh)
    shards_of_batch = math.prod(mesh.shape[name] for name in axes)
    layers = partition_specs(problem, TENSOR_PARALLEL, mesh)
    specs = fsdp_specs(problem, mesh, axis, layers)
    loss_fn = problem.loss_function(ModelAxis("model", mesh.shape["model"]))
    loss_fn = loss_of_shards(problem, loss_fn, partial(gather_for_use, axis), specs)

    @partial(jax.checkpoint, policy=keep_no_gathered)
    def share_of_loss(shards: Params, batch: Batch) -> jax.Array:
        """Return this device's term of the mean loss; the terms' gradients add up."""
        return loss_fn(shards, batch) / shards_of_batch

    value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
    state = create_sharded_state(problem, mesh, specs)
    return shard_mapped_step(problem, mesh, state, axes, value_and_grad, axes)
