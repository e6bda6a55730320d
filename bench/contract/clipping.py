"""Clipping by the global norm, of gradients that may be shards."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.contract import varying_axes


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """As optax.clip_by_global_norm, and right within jax.shard_map, where gradients are shards.

    optax would take the norm of what this device holds. Here squares are summed over the axes that
    a gradient varies over, which jax.shard_map knows while it checks them (`check_vma`, the
    default): every shard counts, and what all devices hold alike counts once. Outside of
    jax.shard_map arrays are global and both are the same.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        norm = jnp.sqrt(squared_norm(updates))
        scale = jnp.minimum(1.0, max_norm / norm)
        return jax.tree.map(lambda x: x * scale.astype(x.dtype), updates), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def squared_norm(tree: Any) -> jax.Array:
    """Sum of squares of all elements, over all devices that hold shards of them.

    Shards of the same axes share one all-reduce of a number.
    """
    by_axes: dict[tuple[str, ...], list[jax.Array]] = {}
    for leaf in jax.tree.leaves(tree):
        axes = tuple(sorted(varying_axes(leaf)))
        by_axes.setdefault(axes, []).append(jnp.sum(jnp.square(leaf)))
    totals = [
        jax.lax.psum(sum(squares), axes) if axes else sum(squares)
        for axes, squares in by_axes.items()
    ]
    return jnp.asarray(sum(totals))
