"""jax.shard_map with psum: shards scale their losses, so that gradients sum to those of the mean.

The function sees one device's shard of the batch and a full copy of the state. Dividing the loss by
the number of shards turns the mean into a sum, so one `psum` of the loss and all gradients is the
step's only communication (4 bytes per parameter, plus the loss), and no pass over the gradients is
needed to divide them.

`pcast` marks the parameters as varying over `data` before differentiation. Without it, shard_map
knows that they are replicated and already sums their gradients over `data`.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.model_state import ModelState
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)

STATISTICS = ("synchronized", "local")


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, model_state, loss_fn = problem.functional_with_state("data")
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    shards = mesh.shape["data"]

    def share_of_loss(
        params: Params, model_state: ModelState, batch: Batch
    ) -> tuple[jax.Array, ModelState]:
        loss, model_state = loss_fn(params, model_state, batch)
        return loss / shards, model_state

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        own_params = jax.lax.pcast(params, "data", to="varying")
        value_and_grad = problem.over_microbatches(jax.value_and_grad(share_of_loss, has_aux=True))
        (loss, model_state), grads = value_and_grad(own_params, model_state, batch)
        loss, grads = jax.lax.psum((loss, grads), "data")
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, model_state), loss

    state = params, problem.optimizer.init(params), model_state
    return TrainStep(
        state=place_model_state_on_shards(state, mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )
