"""Tensor parallelism by annotation of parameters and activations: nothing is left to derive.

Parameter dimensions have logical names (`embed`, `mlp`, `heads`, `vocab`), and a table of rules
maps them to `model`: the columns of one layer and the rows of the next, as in Megatron (Shoeybi et
al. 2019). The batch is split over `data`. After each pair of layers, `with_sharding_constraint`
keeps activations split over `data` and whole along `embed`, where the partitioner might choose
otherwise (XLA:CPU's does not for these models, and communicates as much as tensor_parallel_spmd).
XLA inserts the all-reduces over `model` for activations, two per block in the forward and two in
the backward pass (4 bytes per value), and over `data` for the gradients of each device's shard.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.logical_axes import (
    TENSOR_PARALLEL,
    constrained_activations,
    partition_specs,
    undivided,
)
from bench.contract.placement import (
    create_data_parallel_sharding,
    create_sharded_state,
    place_batch_on_shards,
    unknown_axes,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data", "model") or undivided(
        problem, TENSOR_PARALLEL, mesh, "mlp", "heads"
    )


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function()
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    specs = partition_specs(problem, TENSOR_PARALLEL, mesh)
    state = create_sharded_state(problem, mesh, specs)
    shardings = jax.tree.map(lambda x: x.sharding, state)

    @partial(jax.jit, donate_argnums=0, out_shardings=(shardings, NamedSharding(mesh, P())))
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        with constrained_activations(TENSOR_PARALLEL, mesh):
            loss, grads = problem.over_microbatches(jax.value_and_grad(loss_fn))(params, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=state,
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
