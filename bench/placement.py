"""Placing batches and state on a mesh: the helpers that implementations share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def unknown_axes(mesh: Mesh, *known: str) -> str | None:
    """Why an implementation that distributes over the `known` axes alone cannot use this mesh.

    Returns:
      A reason that names axes which the mesh lacks, or has beside these with a size above 1; None
      if there are none.
    """
    missing = [name for name in known if name not in mesh.shape]
    if missing:
        return f"distributes over {' and '.join(known)}, and this mesh has no {', '.join(missing)}"
    other = [name for name, size in mesh.shape.items() if size > 1 and name not in known]
    if not other:
        return None
    return f"distributes over {' and '.join(known)} only, and this mesh has {', '.join(other)}"


def create_data_parallel_sharding(mesh: Mesh, data_axis: str = "data") -> NamedSharding:
    """Sharding that splits an array's leading dimension over `data_axis` and nothing else.

    Raises:
      ValueError: the mesh has no such axis.
    """
    if data_axis not in mesh.shape:
        raise ValueError(f"mesh has no axis {data_axis!r}; it has: {', '.join(mesh.axis_names)}")
    return NamedSharding(mesh, P(data_axis))


def place_batch_on_shards(batch: Any, sharding: NamedSharding) -> Any:
    """Put a host batch onto the mesh, each leaf's leading dimension split as `sharding` says.

    Args:
      batch: pytree of NumPy arrays of shape (global batch, ...).
      sharding: as `create_data_parallel_sharding` makes it.

    Raises:
      ValueError: a leaf is a scalar, or its leading dimension does not divide by the shards.
    """
    axes = sharding.spec[0]
    names = (axes,) if isinstance(axes, str) else tuple(axes or ())
    shards = 1
    for name in names:
        shards *= sharding.mesh.shape[name]
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        name = jax.tree_util.keystr(path) or "the batch"
        if not jnp.shape(leaf):
            raise ValueError(f"{name} is a scalar: a batch has a leading dimension to split")
        if leaf.shape[0] % shards:
            raise ValueError(
                f"{name} has {leaf.shape[0]} rows, which do not divide into {shards} shards"
            )
    return jax.device_put(batch, sharding)


def replicate(state: Any, mesh: Mesh) -> Any:
    """A copy of a pytree of arrays on every device of the mesh.

    The copy is made by a compiled program on purpose: `jax.device_put` may keep using its
    source's buffer for one of the replicas, and a step that donates the replica would then
    delete the source.
    """
    copy = jax.jit(
        lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=NamedSharding(mesh, P())
    )
    return copy(state)
