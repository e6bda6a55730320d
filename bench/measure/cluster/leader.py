"""The leader of a cluster: rank 0, which waits for the followers and has them start workers."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, cast

from bench.measure.cluster.admission import Admission
from bench.measure.cluster.follower import Hello, hello
from bench.measure.cluster.membership import COME_S, ClusterError, Membership
from bench.measure.hosts import Hear, Order, StartOrder, start_process
from bench.measure.processes.group import Process, free_port
from bench.plan.distributed_config import DistributedConfig
from bench.records.messages import Catalogue

LOST = 255
"""Exit code of a worker whose host no longer answers."""

_KILL_S = 10.0
_PATIENCE_S = 10.0
"""Time after which the leader reports which processes it is waiting for."""


class Leader:
    """The hosts of all processes: that of rank 0, and those of the followers.

    Raises:
      ClusterError: some processes did not connect in time, or run other versions.
    """

    def __init__(self, member: Membership) -> None:
        self.config: DistributedConfig = member.config
        self._hellos: dict[int, Hello] = {0: hello(member.config)}
        self._links: dict[int, _Link] = {}
        try:
            self._gather(member)
            self._check_versions()
        except ClusterError:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """Number of processes of the run."""
        return self.config.world_size

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """Add up the resources; a core that several processes may use counts once."""
        hellos = self._hellos.values()
        cores = {(hello["host"], core) for hello in hellos for core in hello["cores"]}
        devices = catalogue["device_count"]
        if catalogue["platform"] != "cpu":
            devices = max(1, devices // len(self._on_host_of(0, self.processes))) * self.processes
        return {
            **catalogue,
            "processes": self.processes,
            "usable_cores": len(cores),
            "device_count": devices,
        }

    def coordinator(self) -> str:
        """Return a free port of this host, with the address that the followers use."""
        return f"{self.config.master_addr}:{free_port(self.config.master_addr)}"

    def start(self, order: Order, rank: int, hear: Hear) -> Process:
        """Start the launch's process of this rank on its host."""
        # All processes must take part in some compilations, so none may use a cache of its own.
        job = cast("Any", {k: v for k, v in order["job"].items() if k != "program_cache"})
        ranks = self._on_host_of(rank, order["processes"])
        place: StartOrder = {
            **order,
            "job": job,
            "rank": rank,
            "place": ranks.index(rank),
            "neighbours": len(ranks),
        }
        return RemoteProcess(self._links[rank], place, hear) if rank else start_process(place, hear)

    def close(self) -> None:
        """Tell the followers that the run has ended."""
        for link in self._links.values():
            link.send({"end": True})

    def _on_host_of(self, rank: int, processes: int) -> list[int]:
        """List the ranks below `processes` on the same host as this rank."""
        host = self._hellos[rank]["host"]
        return [other for other in range(processes) if self._hellos[other]["host"] == host]

    def _gather(self, member: Membership) -> None:
        began, announced = time.monotonic(), False
        with member.server or self._listen(began) as server:
            admission = Admission(server, member.token)
            while missing := [rank for rank in range(self.processes) if rank not in self._hellos]:
                arrival = admission.wait()
                if arrival is not None:
                    self._receive(*arrival)
                    continue
                waited = time.monotonic() - began
                ranks = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
                where = f"{ranks} of {self.processes} did not connect to {self.config.coordinator}"
                if waited > COME_S:
                    raise ClusterError(f"{where} within {COME_S:g} s")
                if waited > _PATIENCE_S and not announced:
                    announced = True
                    sys.stderr.write(f"{where} yet\n")

    def _listen(self, began: float) -> socket.socket:
        address = (self.config.master_addr, self.config.master_port)
        while True:
            try:
                return socket.create_server(address, backlog=self.processes)
            except OSError as error:
                # A new host name, such as that of a pod, takes a while to resolve.
                unknown = isinstance(error, socket.gaierror)
                if not unknown or time.monotonic() > began + _PATIENCE_S:
                    raise ClusterError(
                        f"rank 0 cannot listen at {self.config.coordinator}: {error.strerror}"
                    ) from error
            time.sleep(0.5)

    def _receive(self, arrived: Hello, connection: Connection[Any, Any]) -> None:
        link, rank, processes = _Link(connection), arrived["rank"], arrived["processes"]
        if processes == self.processes and rank not in self._hellos:
            self._hellos[rank], self._links[rank] = arrived, link
            return
        link.send({"end": True})
        fault = "and so did another process"
        if processes != self.processes:
            fault = f"but rank 0 expects {self.processes} processes"
        raise ClusterError(f"a process connected as rank {rank} of {processes}, {fault}")

    def _check_versions(self) -> None:
        """Check that all processes have the same versions, because they run one program."""
        ours = self._hellos[0]["versions"]
        faults = [
            f"rank {rank} has {name} {theirs or 'unknown'}, rank 0 has {ours[name] or 'unknown'}"
            for rank, other in sorted(self._hellos.items())
            for name, theirs in other["versions"].items()
            if theirs != ours[name]
        ]
        if faults:
            raise ClusterError("the processes have different versions: " + "; ".join(faults))


class _Link:
    """The connection with one follower, and its current worker process."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.process: RemoteProcess | None = None
        self.lost = False
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message if the follower is still connected."""
        try:
            with self._lock:
                self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            self._lose()

    def _read(self) -> None:
        try:
            while True:
                message = json.loads(self._connection.recv_bytes())
                if self.process is not None and self.process.attempt == message["attempt"]:
                    self.process.hear(message)
        except (EOFError, OSError):
            self._lose()

    def _lose(self) -> None:
        self.lost = True
        if self.process is not None:
            self.process.end(LOST, ["the connection to its host was lost"])


class RemoteProcess:
    """A worker process on a follower's host.

    Args:
      link: the connection with the follower.
      order: what to start.
      hear: receives each line of its output, and None after the last.
    """

    def __init__(self, link: _Link, order: StartOrder, hear: Hear) -> None:
        self.attempt = order["job"]["attempt"]
        self._link = link
        self._hear = hear
        self._over = threading.Event()
        self._code: int | None = None
        self._tail: Sequence[str] = ()
        self._killed_by_kernel: bool | None = None
        link.process = self
        if link.lost:
            self.end(LOST, ["the connection to its host was lost before"])
        link.send({"start": order})

    def hear(self, message: Mapping[str, Any]) -> None:
        """Handle a message from the follower."""
        match message:
            case {"said": line}:
                self._hear(line)
            case {"ended": code, "tail": tail, "killed_by_kernel": killed_by_kernel}:
                self._killed_by_kernel = killed_by_kernel
                self.end(code, tail)

    def end(self, code: int, tail: Sequence[str]) -> None:
        """Record how the process ended, unless it has ended before."""
        if not self._over.is_set():
            self._code, self._tail = code, tail
            self._over.set()
            self._hear(None)

    def answer(self, line: str) -> None:
        """Send a line to its stdin."""
        self._link.send({"say": line})

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it is still running."""
        self._over.wait(timeout_s)
        return self._code

    def stopped(self) -> bool:
        """Return False: the leader cannot tell whether a remote process is stopped."""
        return False

    def tail(self) -> list[str]:
        """Return the last lines of its stderr."""
        return [*self._tail]

    def turn(self) -> tuple[str, float]:
        """Return an empty turn: only rank 0, which is never remote, reports turns."""
        return "", 0.0

    def killed_by_kernel(self) -> bool | None:
        """Tell whether the kernel killed a process of the host to free memory; None if unknown."""
        return self._killed_by_kernel

    def kill(self) -> None:
        """Kill it and everything that it started."""
        if not self._over.is_set():
            self._link.send({"kill": True})
            self._over.wait(_KILL_S)
