"""The hosts of a run, and the start of worker processes on them."""

import json
from pathlib import Path
from typing import TypedDict

from bench.measure.environment import worker_cores, worker_environment
from bench.measure.processes.group import LocalProcess, Process, free_port
from bench.measure.processes.guarded import OnLine
from bench.records.messages import Catalogue, Job, Place
from bench.records.variants import Variant


class Order(TypedDict):
    """The description of a launch for the hosts that start its processes."""

    job: Job
    platform: str
    devices: int
    """Devices of each process."""
    processes: int
    variables: dict[str, str]
    coordinator: str
    """`host:port` for jax.distributed.initialize; empty if there is one process."""


class StartOrder(Order):
    """The order to start one of the launch's processes."""

    rank: int
    place: int
    """Index among the processes of its host."""
    neighbours: int
    """Number of processes that share its host, itself included."""


class Hosts:
    """The hosts of a run: only this one, unless a subclass has more."""

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """Add the resources of the other hosts to what this one sees."""
        return catalogue

    def coordinator(self) -> str:
        """Return a free `host:port` for the coordinator of a launch."""
        return f"127.0.0.1:{free_port('127.0.0.1')}"

    def start(self, order: Order, rank: int, on_line: OnLine) -> Process:
        """Start the launch's process of this rank, with cores of its own if possible."""
        every = order["processes"]
        return start_process({**order, "rank": rank, "place": rank, "neighbours": every}, on_line)

    def close(self) -> None:
        """End the run on the other hosts."""


def start_process(order: StartOrder, on_line: OnLine) -> LocalProcess:
    """Start one of a launch's processes on this host."""
    platform, devices, processes = order["platform"], order["devices"], order["processes"]
    place, neighbours = order["place"], order["neighbours"]
    environment = worker_environment(platform, devices, processes)
    job = order["job"]
    if programs := job.get("program_cache"):  # removed even if it is killed
        environment["TMPDIR"] = str(Path(programs).parent)
    if processes > 1:
        own = Place(rank=order["rank"], processes=processes, coordinator=order["coordinator"])
        if platform != "cpu" and neighbours > 1:
            own["local_devices"] = [*range(place * devices, (place + 1) * devices)]
        job = {**job, "place": own}
    environment = Variant("", order["variables"]).applied(environment)
    cores = worker_cores(platform, devices, place, neighbours)
    return LocalProcess(
        json.dumps(job), on_line, environment=environment, cores=cores, shares_host=processes > 1
    )
