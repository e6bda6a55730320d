"""nnx.jit with nnx.Optimizer: idiomatic Flax, for which the compiler inserts collectives.

The model and the optimizer are objects that the step updates in place. The batch is split over
`data`, and the objects' variables are replicated. As in jit_spmd, XLA's partitioner inserts the
all-reduce of the gradients (4 bytes per parameter, plus the loss) for every microbatch, and on CPU
for every use of a parameter. The difference is dispatch: at every call, nnx.jit traverses both
objects in Python to pass their variables to jax.jit and to write them back.
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

    def step(state: tuple[nnx.Module, Any], batch: Batch) -> tuple[Any, jax.Array]:
        with jax.set_mesh(mesh):
            return state, train_step(*state, batch)

    return TrainStep(
        state=(model, optimizer),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: nnx.to_pure_dict(nnx.state(state[0], nnx.Param)),
        model_state=lambda state: state_of(state[0]),
    )
