"""Clipping by the global norm of gradients that may be shards."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.contract.varying import varying_axes


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Clip like optax.clip_by_global_norm, but correctly inside jax.shard_map.

    There, optax would use the norm of only this device's shards. This transformation sums squares
    over the axes that each gradient varies over, which jax.shard_map tracks with `check_vma` (the
    default): all shards count, replicas count once. Outside jax.shard_map, both do the same.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        scale = jnp.minimum(1.0, max_norm / jnp.sqrt(squared_norm(updates)))
        return jax.tree.map(lambda x: x * scale.astype(x.dtype), updates), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def squared_norm(tree: Any) -> jax.Array:
    """Return the sum of squares of all elements over all devices that hold shards of them.

    Arrays that vary over the same axes share one scalar all-reduce.
    """
    by_axes: dict[tuple[str, ...], list[jax.Array]] = {}
    for leaf in jax.tree.leaves(tree):
        axes = tuple(sorted(varying_axes(leaf)))
        by_axes.setdefault(axes, []).append(jnp.sum(jnp.square(leaf)))
    totals = [jax.lax.psum(sum(own), axes) if axes else sum(own) for axes, own in by_axes.items()]
    return jnp.asarray(sum(totals))
