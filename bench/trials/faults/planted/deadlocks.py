"""A collective that one device never comes to: it waits for its host, which does not answer."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, and in the timed rounds an all-reduce that never ends."""
    right = good.build(problem, mesh)

    def wait(place: Any) -> Any:
        if int(place) == 0:
            moment.injected()
            threading.Event().wait()
        return place

    def part(x: jax.Array) -> jax.Array:
        place = jax.lax.axis_index("data")
        answered = jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.int32), place)
        return jax.lax.psum(x + answered, "data")

    reduced = jax.jit(
        jax.shard_map(part, mesh=mesh, in_specs=P("data"), out_specs=P(), check_vma=False)
    )
    ready = jnp.zeros(mesh.size)

    def step(state: Any, batch: Any) -> Any:
        if moment.timed():
            jax.block_until_ready(reduced(ready))
        return right.step(state, batch)

    return replace(right, step=step)
