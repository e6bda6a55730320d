"""Tensor parallelism by hand: under jax.shard_map, each device runs its shard of every layer.

Parameter dimensions have logical names (`embed`, `mlp`, `heads`, `vocab`), and a table of rules
maps them to `model`: the columns of one layer and the rows of the next, as in Megatron (Shoeybi et
al. 2019). The batch is split over `data`. The model's code computes one device's shard, with
Megatron's all-reduces of partial sums: two per block in the forward pass, and two in the backward
pass for the input gradients of sharded layers (4 bytes per value). The token table is sharded if it
divides evenly, with one all-reduce for its lookup and three of one number per token for the loss.
Over `data`, each device's gradients are all-reduced once.
"""

import jax
from jax.sharding import Mesh

from bench.contract import Batch, ModelAxis, Params, Problem, TrainStep
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
from bench.contract.placement import (
    create_sharded_state,
    shard_mapped_step,
    unknown_axes,
    why_not_in_shards,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    if problem.make_part is None:
        return "the model has no per-device version (`make_part`)"
    reason = unknown_axes(mesh, "data", "model") or undivided(
        problem, TENSOR_PARALLEL, mesh, "mlp", "heads"
    )
    return reason or why_not_in_shards(problem, mesh, "model")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function(ModelAxis("model", mesh.shape["model"]))
    specs = partition_specs(problem, TENSOR_PARALLEL, mesh)
    data_shards = mesh.shape["data"]

    def share_of_loss(params: Params, batch: Batch) -> jax.Array:
        return loss_fn(params, batch) / data_shards

    value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
    state = create_sharded_state(problem, mesh, specs)
    return shard_mapped_step(problem, mesh, state, "data", value_and_grad, ("data",))
