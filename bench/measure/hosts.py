"""Where the processes of a launch run: all on this host, or one by one on others.

Imports no jax.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bench.measure.environment import worker_cores, worker_environment
from bench.measure.processes.group import LocalProcess, Process, Start, free_port
from bench.records.messages import Catalogue, Job, Place
from bench.records.variants import Variant

Hear = Callable[[str | None], None]
"""Is given each line of a process, and None after the last."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Order:
    """A launch, as every host that starts one of its processes needs to know it."""

    job: Job
    platform: str
    devices: int
    """Of each process."""
    processes: int
    variant: Variant | None


class Hosts(Protocol):
    """The hosts that a run has."""

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """What there is to run on, given what one process sees."""

    def coordinator(self) -> str:
        """`host:port` where a launch's rank 0 can serve the others."""

    def start(self, order: Order, coordinator: str, rank: int, hear: Hear) -> Process:
        """Start the launch's process of this rank."""

    def close(self) -> None:
        """The run has ended."""


class ThisHost:
    """All processes here, each on cores of its own as far as there are enough."""

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """As it is."""
        return catalogue

    def coordinator(self) -> str:
        """A free port that only this host reaches."""
        return f"{LOOPBACK}:{free_port(LOOPBACK)}"

    def start(self, order: Order, coordinator: str, rank: int, hear: Hear) -> Process:
        """Start the launch's process of this rank."""
        return start_process(order, coordinator, rank, hear, neighbours=order.processes)

    def close(self) -> None:
        """Nobody else has to know."""


def start_process(
    order: Order,
    coordinator: str,
    rank: int,
    hear: Hear,
    *,
    neighbours: int,
    place: int | None = None,
) -> LocalProcess:
    """Start a launch's process of some rank on this host.

    Args:
      order: the launch.
      coordinator: `host:port` of rank 0; unused where there is one process.
      rank: of the process.
      hear: is given its lines.
      neighbours: processes of the launch on this host that share its cores and accelerators.
      place: of the process among these; its rank if None.
    """
    place = rank if place is None else place
    job = order.job
    environment = worker_environment(order.platform, order.devices, order.processes)
    if order.variant is not None:
        environment = order.variant.applied(environment)
    if order.processes > 1:
        own = Place(rank=rank, processes=order.processes, coordinator=coordinator)
        if order.platform != "cpu" and neighbours > 1:
            own["local_devices"] = [*range(place * order.devices, (place + 1) * order.devices)]
        job = {**job, "place": own}
    start = Start(
        job=json.dumps(job),
        environment=environment,
        cores=worker_cores(order.platform, order.devices, place, neighbours),
        shares_host=order.processes > 1,
    )
    return LocalProcess(start, hear)
