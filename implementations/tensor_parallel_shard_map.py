"""Tensor parallelism by hand: each device runs its part of every layer, under jax.shard_map.

Each parameter's dimensions have names (`embed`, `mlp`, `heads`, `vocab`), and a table of rules says
which go over `model`: of two layers in a row, the columns of the first and the rows of the second,
as Megatron divides them (Shoeybi et al. 2019). The batch is split over `data`.
The model's code is that of one device's part, with Megatron's all-reduces where partial sums are
added up: two a block forward, and backward two where a divided layer's input gradient is (4 bytes
a value). The table of tokens is divided too, where it divides: an all-reduce for its lookup, and
three of a number a token for the loss. Over `data`, one all-reduce of each device's gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, ModelAxis, Params, Problem, TrainStep
from bench.contract.logical_axes import TENSOR_PARALLEL, partition_specs, undivided
from bench.contract.placement import (
    create_data_parallel_sharding,
    create_sharded_state,
    place_batch_on_shards,
    shapes_of_params,
    unknown_axes,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    if problem.make_part is None:
        return "the model's code cannot be that of one device's part"
    return unknown_axes(mesh, "data", "model") or undivided(
        problem, shapes_of_params(problem), TENSOR_PARALLEL, mesh, "mlp", "heads"
    )


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    loss_fn = problem.loss_function(ModelAxis("model", mesh.shape["model"]))
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    specs = partition_specs(problem, shapes_of_params(problem), TENSOR_PARALLEL, mesh)
    state = create_sharded_state(problem, mesh, specs)
    state_specs = jax.tree.map(lambda x: x.sharding.spec, state)
    data_shards = mesh.shape["data"]

    def share_of_loss(params: Params, batch: Batch) -> jax.Array:
        return loss_fn(params, batch) / data_shards

    @partial(jax.jit, donate_argnums=0)
    @partial(
        jax.shard_map, mesh=mesh, in_specs=(state_specs, P("data")), out_specs=(state_specs, P())
    )
    def step(state: tuple[Any, Any], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        # The parameters become this shard's own over `data`, whose gradients are summed below; over
        # `model` it is known what devices share, and gradients are summed where they have to be.
        own_params = jax.lax.pcast(params, "data", to="varying")
        value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss))
        loss, grads = jax.lax.psum(value_and_grad(own_params, batch), "data")
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=state,
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
