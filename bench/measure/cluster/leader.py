"""The leader of a cluster, rank 0: waits for the followers, and has them start workers."""

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
"""Exit code of a worker whose host does not answer any more."""

_KILL_S = 10.0
_PATIENCE_S = 10.0
"""After this time a waiting leader says what it waits for."""


class Leader:
    """The hosts of all processes: rank 0's own, and those of the followers.

    Args:
      member: this process's own place.

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
        cores = {(found["host"], core) for found in hellos for core in found["cores"]}
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
        """Return a free port of this host, by the address that the others know."""
        return f"{self.config.master_addr}:{free_port(self.config.master_addr)}"

    def start(self, order: Order, rank: int, hear: Hear) -> Process:
        """Start the launch's process of this rank on the host of that rank."""
        # All processes compile some programs together, so none may take them from its own cache.
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
        """Ranks below `processes` that run on the same host as this one."""
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
                # A name that was created for this run, such as a pod's, takes a while to resolve.
                unknown = isinstance(error, socket.gaierror)
                if not unknown or time.monotonic() > began + _PATIENCE_S:
                    raise ClusterError(
                        f"rank 0 cannot listen at {self.config.coordinator}: {error.strerror}"
                    ) from error
            time.sleep(0.5)

    def _receive(self, found: Hello, connection: Connection[Any, Any]) -> None:
        link, rank, processes = _Link(connection), found["rank"], found["processes"]
        if processes == self.processes and rank not in self._hellos:
            self._hellos[rank], self._links[rank] = found, link
            return
        link.send({"end": True})
        but = "so did another"
        if processes != self.processes:
            but = f"rank 0 was told of {self.processes} processes"
        raise ClusterError(f"a process came as rank {rank} of {processes}; {but}")

    def _check_versions(self) -> None:
        """Make sure that all run the same versions, because a step is one program."""
        ours = self._hellos[0]["versions"]
        faults = [
            f"rank {rank} has {name} {theirs or 'unknown'}, rank 0 has {ours[name] or 'unknown'}"
            for rank, found in sorted(self._hellos.items())
            for name, theirs in found["versions"].items()
            if theirs != ours[name]
        ]
        if faults:
            raise ClusterError("the processes are not alike: " + "; ".join(faults))


class _Link:
    """The connection with one follower, and the process that it runs at the moment."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.process: RemoteProcess | None = None
        self.lost = False
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, if the follower is still there."""
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
        """Handle a message of the follower."""
        match message:
            case {"said": line}:
                self._hear(line)
            case {"ended": code, "tail": tail, "killed_by_kernel": killed_by_kernel}:
                self._killed_by_kernel = killed_by_kernel
                self.end(code, tail)

    def end(self, code: int, tail: Sequence[str]) -> None:
        """Note that the process has ended."""
        if not self._over.is_set():
            self._code, self._tail = code, tail
            self._over.set()
            self._hear(None)

    def answer(self, line: str) -> None:
        """Send a line to its stdin."""
        self._link.send({"say": line})

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it runs on."""
        self._over.wait(timeout_s)
        return self._code

    def stopped(self) -> bool:
        """Return False: whether a signal has stopped it is not known of another host."""
        return False

    def tail(self) -> list[str]:
        """The last lines of its stderr."""
        return [*self._tail]

    def turn(self) -> tuple[str, float]:
        """Return nothing: rank 0, which is never remote, knows whose turn it is."""
        return "", 0.0

    def killed_by_kernel(self) -> bool | None:
        """Whether the kernel killed a process of its host to free memory; None if unknown."""
        return self._killed_by_kernel

    def kill(self) -> None:
        """End it and everything that it started."""
        if not self._over.is_set():
            self._link.send({"kill": True})
            self._over.wait(_KILL_S)
