"""Data parallelism with sparse updates: all-gathers of the largest quarter, with error feedback.

Each device computes the update of its own gradients, sends only the quarter of it that is largest
in magnitude, with indices, and adds up what all devices have sent (Lin et al. 2018, "Deep Gradient
Compression", https://arxiv.org/abs/1712.01887). What a device does not send, it adds to its next
update, where it grows until it is among the largest: error feedback. Sending gradients would not
do: Adam divides by their size, so the sum of four steps' gradients would count as one step's.

The two all-gathers, of values and of indices, receive 8 bytes for a quarter of the parameters from
every device, so the more devices, the less this saves. An all-reduce of 4 bytes averages the loss.
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

approximate = "only the largest quarter of each device's update is sent; the rest arrives later"

SHARE = 1 / 4
"""Share of the elements that a device sends."""


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, loss_fn = problem.functional()
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    devices = mesh.shape["data"]
    flat_params, _ = ravel_pytree(params)
    k = max(1, round(SHARE * flat_params.size))

    def mean(updates: Any, unsent: jax.Array) -> tuple[Any, jax.Array]:
        """Average the largest elements over the devices; `unsent` is the rest so far."""
        flat, unravel = ravel_pytree(updates)
        wanted = flat + unsent
        _, indices = jax.lax.top_k(jnp.abs(wanted), k)
        values = wanted[indices]
        unsent = wanted.at[indices].set(0)
        values, indices = jax.lax.all_gather((values, indices), "data")  # (devices, k)
        total = jnp.zeros_like(flat).at[indices.ravel()].add(values.ravel())
        return unravel(total / devices), unsent

    specs = (P(), P("data"), P("data"))

    # Under check_vma, clipping would take each device's own gradients for shards of one.
    @partial(jax.jit, donate_argnums=0)
    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(specs, P("data")),
        out_specs=(specs, P()),
        check_vma=False,
    )
    def step(state: tuple[Any, ...], batch: Batch) -> tuple[Any, jax.Array]:
        params, opt_state, unsent = state
        own_opt_state = jax.tree.map(lambda x: x[0], opt_state)
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn))
        loss, grads = value_and_grad(params, batch)
        updates, own_opt_state = problem.optimizer.update(grads, own_opt_state, params)
        updates, unsent = mean(updates, unsent)
        params = optax.apply_updates(params, updates)
        opt_state = jax.tree.map(lambda x: x[None], own_opt_state)
        return (params, opt_state, unsent), jax.lax.pmean(loss, "data")

    opt_state = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (devices, *jnp.shape(x))), problem.optimizer.init(params)
    )
    unsent = jnp.zeros(devices * flat_params.size, flat_params.dtype)
    return TrainStep(
        state=place_model_state_on_shards((params, opt_state, unsent), mesh, {r"^[12]": P("data")}),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
    )
