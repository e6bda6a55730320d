"""FSDP and tensor parallelism by annotation: rules shard the state, the compiler does the rest.

This is the mesh on which large models are trained. Rules shard the layers' widths over `model`, as
in tensor_parallel_spmd, and each parameter and its optimizer state are also sharded over `fsdp`
(over `data` if the mesh has no `fsdp`), along the largest remaining dimension. The batch is split
over `data` and `fsdp`. A constraint inside the loss asks for parameters that are whole along
`fsdp`, so XLA's partitioner inserts an all-gather of each device's shard of the layers (4 bytes per
element). Activations are all-reduced over `model`, about two per block in the forward and two in
the backward pass. On GPU and TPU, gradients are reduce-scattered over `fsdp`; XLA:CPU all-reduces
them, for every microbatch and every use of a parameter.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.layer_stacks import loss_of_shards
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
from bench.contract.placement import (
    batch_axes,
    create_data_parallel_sharding,
    create_sharded_state,
    fsdp_specs,
    place_batch_on_shards,
    shard_axis,
    unknown_axes,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, *batch_axes(mesh), "model") or undivided(
        problem, TENSOR_PARALLEL, mesh, "mlp", "heads"
    )


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function()
    batch_sharding = create_data_parallel_sharding(mesh, batch_axes(mesh))
    layers = partition_specs(problem, TENSOR_PARALLEL, mesh)
    state = create_sharded_state(problem, mesh, fsdp_specs(problem, mesh, shard_axis(mesh), layers))
    shardings = jax.tree.map(lambda x: x.sharding, state)

    def gathered(shard: jax.Array, spec: P) -> jax.Array:
        return jax.lax.with_sharding_constraint(shard, NamedSharding(mesh, spec))

    loss_fn = loss_of_shards(problem, loss_fn, gathered, layers)

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn))
        loss, grads = value_and_grad(params, batch)
        grads = jax.lax.with_sharding_constraint(grads, shardings[0])
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=state,
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
