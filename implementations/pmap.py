"""jax.pmap with pmean: the oldest API, in which state and batch have a leading device dimension.

Every array has one slice per device, and the function sees its own slice. One `pmean` of the loss
and all gradients is the step's only communication (4 bytes per parameter, plus the loss). Each
device then applies the same update to its own slice.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    unknown_axes,
)

STATISTICS = ("synchronized", "local")


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, model_state, loss_fn = problem.functional_with_state("data")
    devices = list(mesh.devices.flat)
    one_slice_a_device = create_data_parallel_sharding(mesh, "data")

    @partial(jax.pmap, axis_name="data", devices=devices, donate_argnums=0, out_axes=(0, None))
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, model_state = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True))
        (loss, model_state), grads = value_and_grad(params, model_state, batch)
        loss, grads = jax.lax.pmean((loss, grads), "data")
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, model_state), loss

    @partial(jax.jit, out_shardings=one_slice_a_device)
    def stack_copies(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (len(devices), *x.shape)), tree)

    def place(batch: Batch) -> Batch:
        slices = jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)
        return place_batch_on_shards(slices, one_slice_a_device)

    def as_replicas(stacked: jax.Array) -> jax.Array:
        """Copy the slices into one replicated array: each device's slice is its replica."""
        slices = [shard.data[0] for shard in stacked.addressable_shards]
        sharding = NamedSharding(mesh, P())
        return jax.make_array_from_single_device_arrays(slices[0].shape, sharding, slices)

    return TrainStep(
        state=stack_copies((params, problem.optimizer.init(params), model_state)),
        place=place,
        step=step,
        params=lambda state: jax.tree.map(as_replicas, state[0]),
        model_state=lambda state: jax.tree.map(as_replicas, state[2]),
    )
