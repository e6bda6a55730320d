"""FSDP by annotation: the state is sharded, and the compiler gathers parameters for use.

Each parameter and its optimizer state are sharded along the largest dimension over `fsdp` (over
`data` if the mesh has no `fsdp`); the batch is split over `data` and `fsdp`. A constraint inside
the loss asks for whole parameters, so XLA's partitioner inserts an all-gather of each. The output
sharding makes each device keep its shard of the gradients and update its shard of the state. On GPU
and TPU, gradients are reduce-scattered; XLA:CPU all-reduces them, for every microbatch and every
use of a parameter (tied embeddings have two), and each device slices out its shard.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.layer_stacks import loss_of_shards
from bench.contract.placement import (
    batch_axes,
    create_data_parallel_sharding,
    create_sharded_state,
    fsdp_specs,
    place_batch_on_shards,
    place_model_state_on_shards,
    shard_axis,
    unknown_axes,
)

STATISTICS = ("synchronized",)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, *batch_axes(mesh))


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    model_state, loss_fn = problem.draw_state(), problem.loss_with_state()
    batch_sharding = create_data_parallel_sharding(mesh, batch_axes(mesh))
    replicated = NamedSharding(mesh, P())
    specs = fsdp_specs(problem, mesh, shard_axis(mesh))
    model_state = place_model_state_on_shards(model_state, mesh)
    state = *create_sharded_state(problem, mesh, specs), model_state
    shardings = jax.tree.map(lambda x: x.sharding, state)

    def gathered(shard: jax.Array, _: P) -> jax.Array:
        return jax.lax.with_sharding_constraint(shard, replicated)

    loss_fn = loss_of_shards(problem, loss_fn, gathered, specs)

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, replicated))
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(params, model_state, batch)
        grads = jax.lax.with_sharding_constraint(grads, shardings[0])
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, model_state), loss

    return TrainStep(
        state=state,
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )
