"""Prints the placement of a cell's arrays as JSON, in its own process, on the cell's mesh."""

from __future__ import annotations

import jax
import numpy as np

from bench.contract.logical_axes import path_of
from bench.records.messages import ArrayLayout, CellRequest, Inspection
from bench.worker.answer.requested_cell import answer_requests, load_cell
from bench.worker.read.program_memory import device_bytes


def inspect(request: CellRequest) -> Inspection:
    """Build the cell's step, and describe its state and a batch; no step runs."""
    cell = load_cell(request)
    inspection = Inspection(
        axes=[[name, size] for name, size in cell.block.mesh.axes],
        # The last axis runs across.
        devices=np.vectorize(lambda device: int(device.id))(
            cell.mesh.devices.reshape(-1, cell.mesh.devices.shape[-1])
        ).tolist(),
        unsupported=cell.why_unsupported(),
        parameters=[],
        device_bytes={},
    )
    if inspection["unsupported"]:
        return inspection
    step = cell.implementation.build(cell.problem, cell.mesh)
    params = (step.held or step.params)(step.state)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    inspection["parameters"] = [layout(path_of(path), leaf) for path, leaf in leaves]
    inspection["device_bytes"] = {
        "parameters": device_bytes(params),
        "state": device_bytes(step.state),
        "batch": device_bytes(step.place(cell.problem.batch(0))),
    }
    return inspection


def layout(path: str, array: jax.Array) -> ArrayLayout:
    """Describe which device holds which shard of an array."""
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


if __name__ == "__main__":
    answer_requests(inspect)
