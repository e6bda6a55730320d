"""jax.jit with explicit axes: shardings are part of array types and are checked while tracing.

Where jit_spmd leaves shardings to XLA's partitioner, JAX's own rules derive the sharding of every
result from those of the inputs, and raise an error if it is ambiguous. The batch is split over
`data` and the state is replicated. The gradients of replicated parameters are sums over the split
batch, which take an all-reduce (4 bytes per parameter, plus the loss) for every microbatch, and on
CPU for every use of a parameter.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import AxisType, Mesh

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
    explicit = Mesh(
        mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * mesh.devices.ndim
    )
    batch_sharding = create_data_parallel_sharding(explicit, "data")

    @partial(jax.jit, donate_argnums=0)
    def train_step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(params, model_state, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, model_state), loss

    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        with jax.set_mesh(explicit):
            return train_step(state, batch)

    state = params, problem.optimizer.init(params), model_state
    return TrainStep(
        state=place_model_state_on_shards(state, explicit),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )
