"""jax.shard_map with pmean: every device differentiates its shard's loss; gradients are averaged.

The function sees one device's shard of the batch and a full copy of the state. One `pmean` of the
loss and all gradients is the step's only communication (4 bytes per parameter, plus the loss). Each
device then applies the same update to its own copy.

`pcast` marks the parameters as varying over `data` before differentiation. Without it, shard_map
knows that they are replicated and already sums their gradients over `data`; `pmean` would then
average equal sums, and the gradients would be too large by a factor of the number of devices.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
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

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        own_params = jax.lax.pcast(params, "data", to="varying")
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(own_params, model_state, batch)
        loss, grads = jax.lax.pmean((loss, grads), "data")
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
