"""The axes over which arrays vary from device to device inside jax.shard_map."""

from typing import Any

import jax
import jax.numpy as jnp


def varying_axes(array: Any) -> frozenset[str]:
    """Return the axes of the enclosing jax.shard_map over which an array or shape may vary.

    Empty outside jax.shard_map, and inside one with `check_vma=False`.
    """
    kind = array if isinstance(array, jax.ShapeDtypeStruct) else jax.typeof(array)
    found: frozenset[str] = kind.manual_axis_type.varying if kind.manual_axis_type else frozenset()
    return found


def zeros_for(like: jax.ShapeDtypeStruct) -> jax.Array:
    """Return zeros that vary over the same mesh axes as the values that will be added to them."""
    zeros, _ = vary_alike(jnp.zeros(like.shape, like.dtype), like)
    return zeros


def vary_alike(*arrays: Any) -> list[jax.Array]:
    """Mark arrays as varying over the same mesh axes; the transpose sums their gradients.

    A rule of jax.custom_vjp has to return gradients that vary like its arguments.
    """
    axes = frozenset().union(*map(varying_axes, arrays))
    return [jax.lax.pcast(x, tuple(sorted(axes - varying_axes(x))), to="varying") for x in arrays]
