"""jax.jit over sharded inputs: a single-device step, for which the compiler inserts collectives.

The batch is split over `data`, parameters and optimizer state are replicated, and the function is
written as if for one device. XLA's partitioner recognizes that the gradients of replicated
parameters are sums over the split batch, and inserts an all-reduce (4 bytes per parameter, plus the
loss) for every microbatch, because it does not move the reduction out of the scan. XLA:CPU also
reduces the gradient of each use of a parameter, so a tied embedding table is all-reduced twice.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)

STATISTICS = ("synchronized",)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, model_state, loss_fn = problem.functional_with_state()
    batch_sharding = create_data_parallel_sharding(mesh, "data")

    @partial(jax.jit, donate_argnums=0, out_shardings=NamedSharding(mesh, P()))
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(params, model_state, batch)
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
