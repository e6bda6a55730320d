"""What the processes of a launch tell one another. One process alone has nothing to ask.

All of these are collectives: every process has to call them, in the same order.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from bench.protocol import Place

T = TypeVar("T")


def join(place: Place) -> None:
    """Connect this process with the others of its launch, before jax has looked for devices.

    Raises:
      jax.errors.JaxRuntimeError: they did not all come.
    """
    jax.distributed.initialize(
        place["coordinator"],
        place["processes"],
        place["rank"],
        local_device_ids=place.get("local_devices"),
        cluster_detection_method="deactivate",
        coordinator_bind_address=place["coordinator"],
    )


def leave() -> None:
    """Part from the others: none of them takes this process's end for a failure."""
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def is_main() -> bool:
    """Whether this process speaks for all: it is of rank 0."""
    return jax.process_index() == 0


def everyones(value: T) -> list[T]:
    """The value of every process, by rank. It must be one that JSON can write."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = [int(size) for size in gather(np.array([text.size], np.int32))]
    room = 1 << (max(sizes) - 1).bit_length()  # few different sizes are few programs to compile
    padded = np.zeros(room, np.uint8)
    padded[: text.size] = text
    rows = gather(padded).reshape(len(sizes), room)
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def of_main(value: T) -> T:
    """The value that the process of rank 0 has."""
    return everyones(value)[0]


def gather(array: np.ndarray) -> np.ndarray:
    """The arrays of all processes, which have the same shape, one after the other."""
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def on_host(array: Any) -> np.ndarray:
    """An array as a whole, also where this process has a part of it alone."""
    if isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    ):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)
