"""Prints, as JSON, where a cell's arrays lie. Runs in a process of its own, on the cell's mesh."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from bench.contract.logical_axes import path_of
from bench.records.messages import ArrayLayout, CellRequest, Inspection
from bench.worker.answer.requested_cell import answer_requests, load_cell
from bench.worker.read.program_memory import device_bytes


def inspect(request: CellRequest) -> Inspection:
    """Build the cell's step and look at its state and a batch; nothing is run."""
    cell = load_cell(request)
    found = Inspection(
        axes=[[name, size] for name, size in cell.block.mesh.axes],
        devices=[[int(device.id) for device in row] for row in _rows(cell.mesh)],
        unsupported=cell.unsupported,
        parameters=[],
        device_bytes={},
    )
    if found["unsupported"]:
        return found
    step = cell.implementation.build(cell.problem, cell.mesh)
    params = (step.held or step.params)(step.state)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    found["parameters"] = [layout(path_of(path), leaf) for path, leaf in leaves]
    found["device_bytes"] = {
        "parameters": device_bytes(params),
        "state": device_bytes(step.state),
        "batch": device_bytes(step.place(cell.problem.batch(0))),
    }
    return found


def layout(path: str, array: jax.Array) -> ArrayLayout:
    """Which device has which part of an array."""
    parts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for shard in array.addressable_shards:
        ranges = zip(shard.index, array.shape, strict=True)
        index = tuple((part.start or 0, part.stop or size) for part, size in ranges)
        parts.setdefault(index, []).append(int(shard.device.id))
    return ArrayLayout(
        path=path,
        shape=list(array.shape),
        dtype=str(array.dtype),
        bytes=int(array.nbytes),
        device_bytes=max(int(shard.data.nbytes) for shard in array.addressable_shards),
        parts=[{"index": [list(r) for r in index], "devices": ids} for index, ids in parts.items()],
    )


def _rows(mesh: Mesh) -> np.ndarray:
    """The mesh's devices with its last axis across."""
    return mesh.devices.reshape(-1, mesh.devices.shape[-1])


if __name__ == "__main__":
    answer_requests(inspect)
