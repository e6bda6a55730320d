"""A right step: jax.jit over sharded inputs. What is planted beside it must not harm it."""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import Mesh

from bench.contract import Batch, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    """It divides the batch alone."""
    del problem
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The step on this mesh."""
    params, loss_fn = problem.functional()
    sharding = create_data_parallel_sharding(mesh)

    @jax.jit
    def step(state: Any, batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
        place=lambda batch: place_batch_on_shards(batch, sharding),
        step=step,
        params=lambda state: state[0],
    )
