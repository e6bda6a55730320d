"""Detection of replicas of an array that differ between devices or processes, and by how much."""

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from bench.worker import process_exchange
from bench.worker.prove.carried_state import Flat
from bench.worker.prove.state_reader import digest_of

PROJECTIONS = 16


class Drift(NamedTuple):
    """Replicas of an array that are not bitwise equal."""

    where: str
    """The first difference, in words."""
    size: float
    """Root mean square of the largest difference."""


def find_drifts(arrays: dict[str, Any], masks: Flat | None = None) -> dict[str, Drift]:
    """Find the arrays whose replicas differ, by name; all processes get the same result.

    Checksums show whether replicas differ. The size of a difference is estimated without moving
    replicas between processes: the mean square of a vector's products with random signs is its
    squared length (Achlioptas 2003, "Database-friendly random projections"). `masks` has, by name,
    a bool per element, whether sizes include it; they include all elements of other arrays.
    """
    own = [
        (name, str(shard.index), shard.device.id, digest_of(shard.data))
        for name, array in arrays.items()
        if array.sharding.num_devices * prod(array.sharding.shard_shape(array.shape)) > array.size
        for shard in array.addressable_shards
    ]
    firsts: dict[tuple[str, str], tuple[int, int, int]] = {}
    where: dict[str, str] = {}
    for rank, replicas in enumerate(process_exchange.gather(own)):
        for name, index, device, digest in replicas:
            first = firsts.setdefault((name, index), (rank, device, digest))
            if digest != first[2]:
                between = f"device {first[1]} and device {device}"
                if rank != first[0]:
                    between += f", in process {first[0]} and {rank}"
                where.setdefault(name, f"replicas drift: {name} is not the same on {between}")
    if not where:
        return {}
    sums: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    projected = [each for name in sorted(where) for each in _projections(name, arrays[name], masks)]
    for everyones in process_exchange.gather(projected):
        for name, index, projections in everyones:
            sums[name, index].append(projections)
    sizes: dict[str, list[float]] = defaultdict(list)
    for (name, _), each in sums.items():
        differences = np.array(each) - each[0]
        sizes[name] += [*np.sqrt(np.mean(np.square(differences), axis=1))]
    # Python's max would drop a NaN.
    return {name: Drift(text, float(np.max(sizes[name]))) for name, text in where.items()}


def _projections(
    name: str, array: Any, masks: Flat | None
) -> Iterator[tuple[str, str, list[float]]]:
    """Project each replica on the same random signs, divided by the root of its element count."""
    for shard in array.addressable_shards:
        values = np.asarray(shard.data).astype(np.float64)
        if masks is not None and name in masks:
            values = values * masks[name][shard.index]
        signs = np.random.default_rng(crc32(f"{name}{shard.index}".encode()))
        sums = [
            float(values.ravel() @ (2.0 * signs.integers(0, 2, values.size) - 1))
            for _ in range(PROJECTIONS)
        ]
        yield name, str(shard.index), [total / values.size**0.5 for total in sums]
