"""nnx.jit with nnx.cached_partial: like nnx_jit, but the objects are traversed only once.

`nnx.cached_partial` binds the model and the optimizer to the compiled function and caches their
structure, so a call passes their variables without traversing them again. The computation and
communication are those of nnx_jit: XLA's partitioner inserts an all-reduce of the gradients (4
bytes per parameter, plus the loss) for every microbatch, and on CPU for every use of a parameter.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.model_state import state_of
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_nnx_state_on_shards,
    unknown_axes,
)

STATISTICS = ("synchronized",)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    model = problem.model()
    optimizer = nnx.Optimizer(model, problem.optimizer, wrt=nnx.Param)
    for stateful in (model, optimizer):
        nnx.update(stateful, place_nnx_state_on_shards(nnx.state(stateful), mesh, [(..., P())]))

    @partial(nnx.jit, donate_argnums=(0, 1))
    def train_step(model: nnx.Module, optimizer: nnx.Optimizer[Any], batch: Batch) -> jax.Array:
        loss, grads = problem.model_gradients(model, batch)
        optimizer.update(model, grads)
        return loss

    cached_step = nnx.cached_partial(train_step, model, optimizer)

    def step(state: tuple[nnx.Module, Any], batch: Batch) -> tuple[Any, jax.Array]:
        with jax.set_mesh(mesh):
            return state, cached_step(batch)

    return TrainStep(
        state=(model, optimizer),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: nnx.to_pure_dict(nnx.state(state[0], nnx.Param)),
        model_state=lambda state: state_of(state[0]),
    )
