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
    """All that a host needs to start one of a launch's processes."""

    job: Job
    platform: str
    devices: int
    """Devices of each process."""
    variables: dict[str, str]
    place: Place
    """Its place in the launch; the supervisor fills in that of rank 0."""
    ranks: list[int]
    """Ranks of the processes on its host, itself included."""


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
        place = order["place"] | {"rank": rank}
        return start_process({**order, "place": place}, on_line)

    def close(self) -> None:
        """End the run on the other hosts."""


def start_process(order: Order, on_line: OnLine) -> LocalProcess:
    """Start one of a launch's processes on this host."""
    platform, devices, job = order["platform"], order["devices"], order["job"]
    place, neighbours = order["place"], len(order["ranks"])
    processes, index = place["processes"], order["ranks"].index(place["rank"])
    environment = worker_environment(platform, devices, processes)
    if programs := job.get("program_cache"):  # removed even if it is killed
        environment["TMPDIR"] = str(Path(programs).parent)
    if processes > 1:
        if platform != "cpu" and neighbours > 1:
            place["local_devices"] = [*range(index * devices, (index + 1) * devices)]
        job = {**job, "place": place}
    environment = Variant("", order["variables"]).applied(environment)
    cores = worker_cores(platform, devices, index, neighbours)
    return LocalProcess(
        json.dumps(job), on_line, environment=environment, cores=cores, shares_host=processes > 1
    )
