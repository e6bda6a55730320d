"""Detection of replicas of an array that differ between devices or processes, and by how much."""

from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from bench.worker import process_exchange
from bench.worker.prove.held_state import digest_of

PROJECTIONS = 16


class Drift(NamedTuple):
    """Replicas that are not bitwise equal."""

    where: str
    """The first difference, in words; empty if there is none."""
    sizes: dict[str, float]
    """Root mean square of the largest difference, by name of each array that differs."""


NONE = Drift("", {})


def find_drift(arrays: dict[str, Any], masks: dict[str, np.ndarray] | None = None) -> Drift:
    """Find replicas of arrays that differ; all processes get the same result.

    Checksums show whether replicas differ. The size of a difference is estimated without moving
    replicas between processes: the mean square of a vector's products with random signs is its
    squared length (Achlioptas 2003, "Database-friendly random projections").

    Args:
      arrays: arrays by name.
      masks: by name, a bool per element that includes it in the sizes; all of arrays without one.
    """
    own = [
        (name, str(shard.index), shard.device.id, digest_of(shard.data))
        for name, array in arrays.items()
        if array.sharding.num_devices * prod(array.sharding.shard_shape(array.shape)) > array.size
        for shard in array.addressable_shards
    ]
    firsts: dict[tuple[str, str], tuple[int, int, int]] = {}
    where, differing = "", set()
    for rank, replicas in enumerate(process_exchange.gather(own)):
        for name, index, device, digest in replicas:
            first = firsts.setdefault((name, index), (rank, device, digest))
            if digest != first[2]:
                differing.add(name)
                between = f"device {first[1]} and device {device}"
                if rank != first[0]:
                    between += f", in process {first[0]} and {rank}"
                where = where or f"replicas drift: {name} is not the same on {between}"
    if not where:
        return NONE
    projected: dict[str, dict[str, list[np.ndarray]]] = {}
    everyones = [_projection(name, arrays[name], masks) for name in sorted(differing)]
    for each in process_exchange.gather(everyones):
        for name, projections in each:
            for index, sums in projections:
                projected.setdefault(name, {}).setdefault(index, []).append(np.array(sums))
    sizes = {
        name: [
            np.sqrt(np.mean(np.square(sums - replicas[0])))
            for replicas in shards.values()
            for sums in replicas
        ]
        for name, shards in projected.items()
    }
    # Python's max would drop a NaN.
    return Drift(where, {name: float(np.max(each)) for name, each in sizes.items()})


def _projection(
    name: str, array: Any, masks: dict[str, np.ndarray] | None
) -> tuple[str, list[tuple[str, list[float]]]]:
    """Project each replica on the same random signs, divided by the root of its element count."""
    found = []
    for shard in array.addressable_shards:
        values = np.asarray(shard.data).astype(np.float64)
        if masks is not None and name in masks:
            values = values * masks[name][shard.index]
        signs = np.random.default_rng(crc32(f"{name}{shard.index}".encode()))
        sums = [
            float(values.ravel() @ (2.0 * signs.integers(0, 2, values.size) - 1))
            for _ in range(PROJECTIONS)
        ]
        found.append((str(shard.index), [total / values.size**0.5 for total in sums]))
    return name, found
