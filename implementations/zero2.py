"""ZeRO-2: optimizer state and gradients are sharded; every microbatch's gradients are scattered.

This is zero1, except that no device accumulates whole gradients: after every microbatch, a
reduce-scatter (psum_scatter) gives each device the sum of its share, and the device accumulates
that share alone (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054). With M microbatches
this communicates M halves of an all-reduce of the gradients (4 bytes per parameter each) where
zero1 communicates one; in return, gradients take 1/N of the memory. Each device updates its share
of the parameters with its share of the optimizer state, and the new parameters are all-gathered
once. Arrays without a dimension that divides evenly are all-reduced and updated by every device.
"""

from functools import partial
from typing import Any

import jax
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.model_state import ModelState
from bench.contract.placement import (
    create_data_parallel_sharding,
    create_sharded_state,
    fsdp_specs,
    own_shard,
    place_batch_on_shards,
    place_model_state_on_shards,
    scatter_gradient,
    unknown_axes,
    why_not_in_shards,
)

STATISTICS = ("synchronized", "local")


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data") or why_not_in_shards(problem, mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    model_state, loss_fn = problem.draw_state(), problem.loss_with_state("data")
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    replicated = NamedSharding(mesh, P())
    specs = fsdp_specs(problem, mesh, "data")
    params, opt_state = create_sharded_state(problem, mesh, specs)
    opt_specs = jax.tree.map(lambda x: x.sharding.spec, opt_state)
    shards = mesh.shape["data"]

    def share_of_loss(*arguments: Any) -> tuple[jax.Array, ModelState]:
        loss, model_state = loss_fn(*arguments)
        return loss / shards, model_state

    def scattered_gradients(*arguments: Any) -> tuple[Any, Params]:
        value, grads = jax.value_and_grad(share_of_loss, has_aux=True)(*arguments)
        return value, jax.tree.map(partial(scatter_gradient, "data"), grads, specs)

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=((P(), opt_specs, P()), P("data")),
        out_specs=((specs, opt_specs, P()), P()),
    )
    def update_shards(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        own_params = jax.lax.pcast(params, "data", to="varying")
        value_and_grad = problem.over_microbatches(scattered_gradients)
        (loss, model_state), grads = value_and_grad(own_params, model_state, batch)
        param_shards = jax.tree.map(partial(own_shard, "data"), params, specs)
        updates, opt_state = problem.optimizer.update(grads, opt_state, param_shards)
        new_state = optax.apply_updates(param_shards, updates), opt_state, model_state
        return new_state, jax.lax.psum(loss, "data")

    @partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        (param_shards, *others), loss = update_shards(state, batch)
        # The constraint makes the partitioner all-gather the whole parameters.
        params = jax.lax.with_sharding_constraint(param_shards, replicated)
        return (params, *others), loss

    params = jax.jit(lambda x: x, out_shardings=replicated)(params)
    return TrainStep(
        state=(params, opt_state, place_model_state_on_shards(model_state, mesh)),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )
