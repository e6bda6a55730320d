"""Local steps, as in DiLoCo: an all-reduce averages the devices' parameters in every fourth step.

Each device takes H = 4 steps of the workload's optimizer on its shard of the batch (the inner
steps). Then one all-reduce averages how far the devices have moved, and an outer optimizer, SGD
with Nesterov momentum, moves the shared parameters along the mean. All devices continue from there,
with the moments of their own optimizers (Douillard et al. 2023, https://arxiv.org/abs/2311.08105).
DiLoCo has a larger H, momentum 0.9 and rate 0.7. In a constant direction, the shared parameters
move rate / (1 - momentum) times as fast as the inner steps: 1.1 times here, because momentum takes
time to build up.

The all-reduce of the parameters (4 bytes each) runs under a condition, once per H steps. In the
other steps, the only communication is an all-reduce of 4 bytes that averages the loss.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.placement import (
    create_data_parallel_sharding,
    place_batch_on_shards,
    place_model_state_on_shards,
    unknown_axes,
)

approximate = "each device takes 4 steps on its own shards between averagings of the parameters"

H = 4
"""Inner steps between two outer steps."""

OUTER = optax.sgd(0.55, momentum=0.5, nesterov=True)
"""The outer optimizer."""


def why_unsupported(problem: Problem, mesh: Mesh) -> str | None:
    return unknown_axes(mesh, "data")


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    params, loss_fn = problem.functional()
    batch_sharding = create_data_parallel_sharding(mesh, "data")
    devices = mesh.shape["data"]

    def outer_step(shared: Params, outer_state: Any, local: Params) -> tuple[Params, Any, Params]:
        """Move the shared parameters by the mean of the devices' moves."""
        outer_grads = jax.lax.pmean(jax.tree.map(jnp.subtract, shared, local), "data")
        updates, outer_state = OUTER.update(outer_grads, outer_state)
        shared = optax.apply_updates(shared, updates)
        return shared, outer_state, shared

    def keep(*same: Any) -> tuple[Any, ...]:
        return same

    specs = (P(), P(), P("data"), P())

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
        shared, outer_state, own, count = state
        local, opt_state = jax.tree.map(lambda x: x[0], own)
        value_and_grad = problem.over_microbatches(jax.value_and_grad(loss_fn))
        loss, grads = value_and_grad(local, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, local)
        local = optax.apply_updates(local, updates)
        is_last = count % H == H - 1
        carried = shared, outer_state, local
        shared, outer_state, local = jax.lax.cond(is_last, outer_step, keep, *carried)
        own = jax.tree.map(lambda x: x[None], (local, opt_state))
        return (shared, outer_state, own, count + 1), jax.lax.pmean(loss, "data")

    inner = params, problem.optimizer.init(params)
    own = jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *jnp.shape(x))), inner)
    state = params, OUTER.init(params), own, jnp.zeros((), jnp.int32)
    return TrainStep(
        state=place_model_state_on_shards(state, mesh, {r"^2/": P("data")}),
        place=lambda batch: place_batch_on_shards(batch, batch_sharding),
        step=step,
        params=lambda state: state[0],
        period=H,
    )
