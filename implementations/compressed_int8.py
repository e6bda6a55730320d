"""Data parallelism with gradients all-reduced in int8, with error feedback: a quarter of the bytes.

Every 256 elements of a gradient share a scale, their largest magnitude over 127, and each becomes
an 8-bit integer (as in ZeRO++; Wang et al. 2023, https://arxiv.org/abs/2306.10209). Error
feedback (Seide et al. 2014) keeps the rounding error and adds it to the next step's gradient, so
that no part of a gradient is lost for good: it arrives later.

An all-reduce is a reduce-scatter and an all-gather. Integers with different scales cannot be added
on the way, so the reduce-scatter is an all-to-all, after which each device adds up its own part in
float32. Both collectives move 1 byte per parameter, and 4 for each scale; both roundings have error
feedback. One more all-reduce, of 4 bytes, averages the loss.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)

approximate = "gradients are rounded to 8 bits; the error is added to the next step's"

BLOCK = 256
"""Elements that share a scale."""


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def quantized(exact: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
    """Return blocks (..., BLOCK) as integers and scales, and the rounding error."""
    scales = jnp.max(jnp.abs(exact), axis=-1, keepdims=True) / 127
    integers = jnp.round(exact / jnp.where(scales > 0, scales, 1)).astype(jnp.int8)
    return (integers, scales), exact - integers * scales


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, loss_fn = problem.functional()
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    devices = mesh.shape["data"]
    flat_params, _ = ravel_pytree(params)
    blocks = -(-flat_params.size // (devices * BLOCK))  # added up by each device
    pad = devices * blocks * BLOCK - flat_params.size

    def mean(grads: Any, errors: Any) -> tuple[Any, Any]:
        """Average gradients over the devices; `errors` are the last step's rounding errors."""
        flat, unravel = ravel_pytree(grads)
        own = jnp.pad(flat, (0, pad)).reshape(devices, blocks, BLOCK)  # row i is for device i
        sent, own_error = quantized(own + errors["own"])
        integers, scales = jax.lax.all_to_all(sent, "data", split_axis=0, concat_axis=0)
        sent, mean_error = quantized((integers * scales).mean(0) + errors["mean"])
        integers, scales = jax.lax.all_gather(sent, "data", to="invarying")
        errors = {"own": own_error, "mean": mean_error}
        return unravel((integers * scales).ravel()[: flat.size]), errors

    specs = (P(), P(), P("data"))

    @partial(jax.jit, donate_argnums=0)
    @partial(jax.shard_map, mesh=mesh, in_specs=(specs, P("data")), out_specs=(specs, P()))
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, errors = state
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn))
        loss, grads = value_and_grad(jax.lax.pcast(params, "data", to="varying"), batch)
        grads, errors = mean(grads, errors)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state, errors), jax.lax.pmean(loss, "data")

    zeros = partial(jnp.zeros, dtype=flat_params.dtype)
    errors = {
        "own": zeros((devices * devices, blocks, BLOCK)),
        "mean": zeros((devices * blocks, BLOCK)),
    }
    state = params, problem.optimizer.init(params), errors
    return TrainStep(
        state=place_model_state_on_shards(state, mesh, {r"^2/": P("data")}),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
