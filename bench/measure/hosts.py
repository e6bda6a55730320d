"""The hosts of a run, and the start of worker processes on them."""

from bench.measure.processes.group import LocalProcess, Order, Process, free_port
from bench.measure.processes.guarded import OnLine
from bench.records.messages import Catalogue


class Hosts:
    """The hosts of a run: only this one, unless a subclass has more."""

    address = "127.0.0.1"
    """The address of this host for the processes of a launch."""

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """Add the resources of the other hosts to what this one sees."""
        return catalogue

    def coordinator(self) -> str:
        """Return a free `host:port` for the coordinator of a launch."""
        return f"{self.address}:{free_port(self.address)}"

    def start(self, order: Order, rank: int, on_line: OnLine) -> Process:
        """Start the launch's process of this rank, with cores of its own if possible."""
        place = order["place"] | {"rank": rank}
        return LocalProcess({**order, "place": place}, on_line)

    def close(self) -> None:
        """End the run on the other hosts."""
