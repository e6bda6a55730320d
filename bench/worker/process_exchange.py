"""What the processes of a launch tell one another. One process alone has nothing to ask.

They speak by way of the supervisor, and not by collectives of their devices: where one process has
failed at a step, the others may still be in it, and another collective would meet theirs. Every
process has to ask the same things, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from bench.records.messages import Place

T = TypeVar("T")

_NEVER_S = 7 * 86400
_exchange: Callable[[Any], list[Any]] | None = None


def join(place: Place, exchange: Callable[[Any], list[Any]]) -> None:
    """Connect this process with the others of its launch, before jax has looked for devices.

    Args:
      place: of this process.
      exchange: gives everybody's value, by rank, for this process's own.

    Raises:
      jax.errors.JaxRuntimeError: they did not all come.
    """
    global _exchange  # noqa: PLW0603 - there is one launch a process
    _exchange = exchange
    jax.distributed.initialize(
        place["coordinator"],
        place["processes"],
        place["rank"],
        local_device_ids=place.get("local_devices"),
        cluster_detection_method="deactivate",
        coordinator_bind_address=place["coordinator"],
        # Whoever started the processes sees which one is at fault; left to itself, jax ends those
        # that wait for it.
        heartbeat_timeout_seconds=_NEVER_S,
    )


def leave() -> None:
    """Part from the others: none of them takes this process's end for a failure."""
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def is_main() -> bool:
    """Whether this process speaks for all: it is of rank 0."""
    return jax.process_index() == 0


def gather(value: T) -> list[T]:
    """The value of every process, by rank. It must be one that JSON can write."""
    return [value] if _exchange is None else _exchange(value)


def from_main(value: T) -> T:
    """The value that the process of rank 0 has."""
    return gather(value)[0]


def to_host(array: Any) -> np.ndarray:
    """An array as a whole, also where this process has a part of it alone: then, a collective."""
    if isinstance(array, jax.Array) and not (
        array.is_fully_addressable or array.is_fully_replicated
    ):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)
