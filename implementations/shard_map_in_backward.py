"""jax.shard_map with gradients reduced inside the backward pass, one parameter at a time.

jax.shard_map knows that the parameters are replicated, so the transpose of their use on each
device's own data is a sum over devices: jax.grad inserts a psum where each gradient is produced,
and the rest of the backward pass can overlap with it. The step only divides by the number of
devices. It communicates as much as a single all-reduce (4 bytes per parameter, plus the loss), but
in one all-reduce per parameter; XLA may combine them again, as it does on CPU. Each microbatch has
its own backward pass and is reduced separately, which multiplies the communication. A parameter
that is used twice (tied embeddings) has two gradients, and both are reduced.
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
    reduce_gradients_across_devices,
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
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(params, model_state, batch)
        grads = reduce_gradients_across_devices(grads, "mean", "data")
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        new_state = optax.apply_updates(params, updates), opt_state, model_state
        return new_state, jax.lax.pmean(loss, "data")

    state = params, problem.optimizer.init(params), model_state
    return TrainStep(
        state=place_model_state_on_shards(state, mesh),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )
