"""Global batches of a plan's blocks: the preset's defaults, and how they grow with the mesh."""

import math
from collections.abc import Sequence

from bench.plan import presets
from bench.plan.presets import Preset
from bench.records.mesh import MeshShape


def default_batches(workload: str, preset: Preset, meshes: Sequence[MeshShape]) -> list[int]:
    """Return the preset's batches, rounded up so that every mesh can divide them."""
    batch = presets.default_batch(workload)
    shards = math.lcm(*(mesh.batch_shards for mesh in meshes))
    return [math.ceil(batch * factor / shards) * shards for factor in preset.batch_factors]


def placed(
    batches: Sequence[int], meshes: Sequence[MeshShape], scaling: str
) -> list[tuple[int, MeshShape]]:
    """Return the global batch and mesh of each block; a block of both scalings occurs twice."""
    pairs = []
    for batch in batches:
        if scaling in ("strong", "both"):
            pairs += [(batch, mesh) for mesh in meshes]
        if scaling in ("weak", "both"):
            pairs += [(batch * mesh.batch_shards, mesh) for mesh in meshes]
    return pairs
