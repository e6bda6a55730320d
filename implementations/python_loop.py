"""Reference: a Python loop over the shards; gradients are summed, divided and applied once.

Every device gets a copy of the parameters and its shard of the batch, and computes the shard's loss
and gradients. The first device collects them, sums and divides them, and applies the only update;
only it keeps the state. A step therefore copies the parameters to every device and one set of
gradients back from each, through separate programs that Python launches one after another.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from bench.contract import Batch, Problem, TrainStep
from bench.contract.model_state import mean_of_floats
from bench.contract.placement import unknown_axes

STATISTICS = ("local",)


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    if mesh.is_multi_process:
        return "one Python loop drives all devices, but these belong to several processes"
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    devices = list(mesh.devices.flat)
    params, model_state, loss_fn = problem.functional_with_state()
    shard_step = jax.jit(problem.over_microbatches(jax.value_and_grad(loss_fn, has_aux=True)))

    @partial(jax.jit, donate_argnums=0)
    def update(state: tuple[Any, ...], results: list[Any]) -> tuple[Any, jax.Array]:
        params, opt_state, _ = state
        (loss, model_state), grads = jax.tree.map(mean_of_floats, *results)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state, model_state), loss

    def step(state: tuple[Any, ...], shards: list[Batch]) -> tuple[Any, jax.Array]:
        params, _, model_state = state
        results = [
            shard_step(*jax.device_put((params, model_state), device), shard)
            for device, shard in zip(devices, shards, strict=True)
        ]
        return update(state, jax.device_put(results, devices[0]))

    state = params, problem.optimizer.init(params), model_state
    return TrainStep(
        state=jax.device_put(jax.tree.map(jnp.copy, state), devices[0]),
        place=lambda batch: list(map(jax.device_put, split_batch(batch, len(devices)), devices)),
        step=step,
        params=lambda state: state[0],
        model_state=lambda state: state[2],
    )


def split_batch(batch: Batch, shards: int) -> list[Batch]:
    """Split a host batch into equal parts along its leading dimension, in order.

    Raises:
      ValueError: the rows do not divide evenly into the shards.
    """
    rows = len(jax.tree.leaves(batch)[0])
    if rows % shards:
        raise ValueError(f"a batch of {rows} rows does not divide evenly into {shards} shards")
    parts = jax.tree.map(lambda x: x.reshape(shards, -1, *x.shape[1:]), batch)
    return [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(shards)]


def distributed_train_step(
    seed: int, x_batch: jax.Array, y_batch: jax.Array, num_devices: int, lr: float
) -> jax.Array:
    """Run one data-parallel step of linear regression with `nnx.Linear` and `optax.sgd`.

    One function shows all of data parallelism: split the batch, differentiate each shard's mean
    squared error, sum and divide the gradients, update once.

    Args:
      seed: seed of the layer's initial parameters.
      x_batch: inputs, float (batch, features in).
      y_batch: targets, float (batch, features out).
      num_devices: number of shards, all on the default device; it divides the batch evenly.
      lr: learning rate.

    Returns:
      The mean loss over the shards before the update, shape (1,).

    Raises:
      ValueError: `num_devices` does not divide the batch evenly, or is below 1.
    """
    if num_devices < 1:
        raise ValueError(f"num_devices is {num_devices}; a step needs at least 1")

    def loss_fn(model: nnx.Linear, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((model(x) - y) ** 2)

    model = nnx.Linear(x_batch.shape[-1], y_batch.shape[-1], rngs=nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, optax.sgd(lr), wrt=nnx.Param)
    shards = split_batch((x_batch, y_batch), num_devices)
    results = [nnx.value_and_grad(loss_fn)(model, x, y) for x, y in shards]
    loss, grads = jax.tree.map(mean_of_floats, *results)
    optimizer.update(model, grads)
    return jnp.array([loss])
