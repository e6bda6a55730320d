"""Whether replicas of an array are equal, bit by bit, on all devices of all processes."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import jax
import numpy as np

from bench.worker import process_exchange


def find_drift(arrays: dict[str, Any]) -> str:
    """Describe the first difference between replicas; empty, in all processes, if there is none.

    Args:
      arrays: jax.Arrays by the name that a message should give them.
    """
    drifts = process_exchange.gather(_drift_of_devices(arrays))
    return next(filter(None, drifts), "") or _drift_of_processes(arrays)


def _drift_of_devices(arrays: dict[str, Any]) -> str:
    """Compare the replicas on the devices of this process."""
    for name, array in arrays.items():
        firsts: dict[str, Any] = {}
        for shard in array.addressable_shards:
            first = firsts.setdefault(str(shard.index), shard)
            if shard is not first and _bytes(shard) != _bytes(first):
                return (
                    f"replicas drift: {name} is not the same on "
                    f"device {first.device.id} and device {shard.device.id}"
                )
    return ""


def _drift_of_processes(arrays: dict[str, Any]) -> str:
    """Compare the replicas of all processes by their digests."""
    if jax.process_count() == 1:
        return ""
    digests = [
        (name, str(shard.index), sha256(_bytes(shard)).hexdigest())
        for name, array in arrays.items()
        for shard in array.addressable_shards
    ]
    firsts: dict[tuple[str, str], tuple[int, str]] = {}
    for rank, replicas in enumerate(process_exchange.gather(digests)):
        for name, index, digest in replicas:
            first_rank, first_digest = firsts.setdefault((name, index), (rank, digest))
            if digest != first_digest:
                return f"replicas drift: {name} is not the same in process {first_rank} and {rank}"
    return ""


def _bytes(shard: Any) -> bytes:
    return np.asarray(shard.data).tobytes()
