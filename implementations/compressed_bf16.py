"""Data parallelism with gradients all-reduced in bfloat16, with error feedback: half the bytes.

Rounding a gradient to bfloat16 keeps 8 of its 24 significant bits. Error feedback (Seide et al.
2014) keeps the rounding error and adds it to the next step's gradient, so that no part of a
gradient is lost for good: it arrives later.

An all-reduce is a reduce-scatter and an all-gather. Here the reduce-scatter is an all-to-all, after
which each device adds up its own part in float32: a sum in bfloat16 would round at every addition.
Both collectives move 2 bytes per parameter instead of 4, and both roundings have error feedback.
One more all-reduce, of 4 bytes, averages the loss.
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

approximate = "gradients are rounded to bfloat16; the error is added to the next step's"


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, loss_fn = problem.functional()
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    devices = mesh.shape["data"]
    flat_params, _ = ravel_pytree(params)
    dtype = flat_params.dtype
    part = -(-flat_params.size // devices)  # elements that each device adds up
    pad = part * devices - flat_params.size

    def rounded(exact: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the bits of the array in bfloat16, and the rounding error."""
        kept = jax.lax.reduce_precision(exact, 8, 7)  # XLA may drop a cast to bfloat16 and back
        # XLA:CPU widens bfloat16 to float32 on the wire, so send the bits as uint16.
        bits = jax.lax.bitcast_convert_type(kept.astype(jnp.bfloat16), jnp.uint16)
        return bits, exact - kept

    def values(bits: jax.Array) -> jax.Array:
        return jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(dtype)

    def mean(grads: Any, errors: Any) -> tuple[Any, Any]:
        """Average gradients over the devices; `errors` are the last step's rounding errors."""
        flat, unravel = ravel_pytree(grads)
        own = jnp.pad(flat, (0, pad)).reshape(devices, part)  # row i is for device i
        sent, own_error = rounded(own + errors["own"])
        received = jax.lax.all_to_all(sent, "data", split_axis=0, concat_axis=0)
        sent, mean_error = rounded(values(received).mean(0) + errors["mean"])
        means = values(jax.lax.all_gather(sent, "data", to="invarying"))
        errors = {"own": own_error, "mean": mean_error}
        return unravel(means.ravel()[: flat.size]), errors

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

    zeros = partial(jnp.zeros, dtype=dtype)
    errors = {"own": zeros((devices * devices, part)), "mean": zeros(devices * part)}
    state = params, problem.optimizer.init(params), errors
    return TrainStep(
        state=place_model_state_on_shards(state, mesh, {r"^2/": P("data")}),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
