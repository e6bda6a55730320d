"""Exchange of values between the processes of a launch; a single process exchanges with itself.

Values go through the supervisor rather than through device collectives: if one process has failed
in a step, the others may still be running it, and a further collective would match the step's own.
Every process must take part in the same exchanges in the same order.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from bench.records.messages import Place
from bench.records.statuses import Status

T = TypeVar("T")
ENDED = "ended in all processes"
"""Key of what a process sends in place of its value if it has failed; no name has spaces."""

_NEVER_S = 7 * 86400
_exchange: Callable[[Any], list[Any]] | None = None


class EndedError(Exception):
    """An action failed in at least one process of the launch, so no process may use its result."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status: Status = status
        self.reason = reason


def join(place: Place, exchange: Callable[[Any], list[Any]]) -> None:
    """Connect this process with the others of its launch, before jax initializes its backends.

    `exchange` sends this process's value, and returns the values of all processes, by rank.
    """
    global _exchange  # noqa: PLW0603 - there is one launch per process
    _exchange = exchange
    jax.distributed.initialize(
        place["coordinator"],
        place["processes"],
        place["rank"],
        local_device_ids=place.get("local_devices"),
        cluster_detection_method="deactivate",
        coordinator_bind_address=place["coordinator"],
        # The supervisor finds the process at fault; jax would end those that wait for it.
        heartbeat_timeout_seconds=_NEVER_S,
    )


def is_main() -> bool:
    """Whether this is the process of rank 0, which reports for all."""
    return jax.process_index() == 0


def gather(value: T) -> list[T]:
    """Return all processes' values (as in JSON), by rank; EndedError if one called `end_all`."""
    values = [value] if _exchange is None else _exchange(value)
    for each in values:
        if isinstance(each, dict) and ENDED in each:
            raise EndedError(*each[ENDED])
    return values


def end_all(status: Status, reason: str) -> NoReturn:
    """Raise EndedError in all processes, at their next exchange."""
    gather({ENDED: [status, reason]})
    raise AssertionError("gather raises EndedError")


def from_main(value: T) -> T:
    """Return the value of the process of rank 0."""
    return gather(value)[0]


def to_host(x: Any) -> np.ndarray:
    """Copy a whole array to the host; a collective if this process lacks some of its shards."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(x, tiled=True))
    return np.asarray(x)
