"""Where the arrays of a step lie: the shards of each, and the bytes on each device."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bench.contract import TrainStep
from bench.contract.logical_axes import path_of
from bench.records.messages import ArrayLayout, Inspection


def inspection(mesh: Mesh, step: TrainStep | None, batch: Any = None, why: str = "") -> Inspection:
    """Describe where the state of a step at its start, and a placed batch, lie on all devices.

    Without a step, `why` is the reason why the implementation does not support the cell.
    """
    found = Inspection(
        axes=[[name, size] for name, size in mesh.shape.items()],
        # The last axis runs across.
        devices=np.vectorize(lambda device: int(device.id))(
            mesh.devices.reshape(-1, mesh.devices.shape[-1])
        ).tolist(),
        unsupported=why,
        parameters=[],
        device_bytes={},
    )
    if step is not None:
        params = (step.held or step.params)(step.state)
        leaves = jax.tree_util.tree_leaves_with_path(params)
        found["parameters"] = [
            _layout(path_of(path), leaf) for path, leaf in leaves if isinstance(leaf, jax.Array)
        ]
        trees = {"parameters": params, "state": step.state, "batch": batch}
        found["device_bytes"] = {name: device_bytes(tree) for name, tree in trees.items()}
    return found


def device_bytes(tree: Any) -> dict[str, int]:
    """Return the bytes of a tree's arrays on each device, by device id."""
    total: Counter[str] = Counter()
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            devices: set[Any] = leaf.sharding.device_set
            total.update({str(device.id): _shard_bytes(leaf) for device in devices})
    return dict(total)


def _shard_bytes(array: jax.Array) -> int:
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def _layout(path: str, array: jax.Array) -> ArrayLayout:
    """Describe which device holds which shard of an array."""
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    shards: Mapping[Any, Any] = array.sharding.devices_indices_map(array.shape)
    for device, index in shards.items():
        ranges = zip(index or (), array.shape, strict=True)
        key = tuple((part.start or 0, part.stop or size) for part, size in ranges)
        parts.setdefault(key, []).append(int(device.id))
    return ArrayLayout(
        path=path,
        shape=list(array.shape),
        dtype=str(array.dtype),
        bytes=int(array.nbytes),
        device_bytes=_shard_bytes(array),
        parts=[
            {"index": [list(r) for r in index], "devices": sorted(ids)}
            for index, ids in parts.items()
        ],
    )
