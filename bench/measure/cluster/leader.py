"""The process of rank 0: waits for the others, and has them start the workers of each launch."""

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
from bench.measure.cluster.follower import Hello, StartOrder, hello
from bench.measure.cluster.membership import COME_S, ClusterError, Membership
from bench.measure.hosts import Hear, Order, start_process
from bench.measure.processes.group import Process, free_port
from bench.plan.distributed_config import DistributedConfig
from bench.records.messages import Catalogue

LOST = 255
"""Exit code that stands for that of a worker whose host does not answer any more."""

_KILL_S = 10.0
_PATIENCE_S = 10.0
"""Who waits longer is told what for."""


class Leader:
    """The hosts of all processes: rank 0's own, and those of the followers.

    Args:
      member: this process's own place.

    Raises:
      ClusterError: not all came in time, or they are not alike.
    """

    def __init__(self, member: Membership) -> None:
        self.config: DistributedConfig = member.config
        self._hellos: dict[int, Hello] = {0: hello(member.config)}
        self._links: dict[int, _Link] = {}
        try:
            self._gather(member)
            self._check()
        except ClusterError:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """Of the run."""
        return self.config.world_size

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """Add up what there is; a core that several processes may use counts once."""
        hellos = self._hellos.values()
        cores = {(one["host"], core) for one in hellos for core in one["cores"]}
        devices = catalogue["device_count"]
        if catalogue["platform"] != "cpu":
            beside = sum(one["host"] == self._hellos[0]["host"] for one in hellos)
            devices = max(1, devices // beside) * self.processes
        return {
            **catalogue,
            "processes": self.processes,
            "usable_cores": len(cores),
            "device_count": devices,
        }

    def coordinator(self) -> str:
        """A free port of this host, by the address that the others know."""
        return f"{self.config.master_addr}:{free_port(self.config.master_addr)}"

    def start(self, order: Order, coordinator: str, rank: int, hear: Hear) -> Process:
        """Start the launch's process of this rank, on the host of that rank."""
        # What one host has compiled, others would have to compile: some programs are compiled by
        # all processes together.
        job = cast("Any", {k: v for k, v in order.job.items() if k != "program_cache"})
        beside = [
            other
            for other in range(order.processes)
            if self._hellos[other]["host"] == self._hellos[rank]["host"]
        ]
        if rank == 0:
            order = Order(job, order.platform, order.devices, order.processes, order.variant)
            return start_process(order, coordinator, 0, hear, neighbours=len(beside), place=0)
        started = StartOrder(
            job=job,
            platform=order.platform,
            devices=order.devices,
            processes=order.processes,
            variant="" if order.variant is None else f"{order.variant.name}={order.variant}",
            coordinator=coordinator,
            rank=rank,
            place=beside.index(rank),
            neighbours=len(beside),
        )
        return RemoteProcess(self._links[rank], started, hear)

    def close(self) -> None:
        """Tell the others that the run has ended."""
        for link in self._links.values():
            link.tell({"end": True})

    def _gather(self, member: Membership) -> None:
        began, told = time.monotonic(), False
        with member.server or self._listen(began) as server:
            admission = Admission(server, member.token)
            while missing := [rank for rank in range(self.processes) if rank not in self._hellos]:
                arrival = admission.wait()
                if arrival is not None:
                    self._receive(*arrival)
                    continue
                waited = time.monotonic() - began
                who = f"of {self.processes} processes, {_ranks(missing)}"
                if waited > COME_S:
                    raise ClusterError(
                        f"{who} did not come to {self.config.coordinator} within {COME_S:g} s"
                    )
                if waited > _PATIENCE_S and not told:
                    told = True
                    sys.stderr.write(f"{who} did not come to {self.config.coordinator} yet\n")

    def _listen(self, began: float) -> socket.socket:
        address = (self.config.master_addr, self.config.master_port)
        while True:
            try:
                return socket.create_server(address, backlog=self.processes)
            except OSError as error:
                # A name that was made for this run, as a pod's, may need a while to be known.
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
        link.tell({"end": True})
        but = (
            f"rank 0 was told of {self.processes} processes"
            if processes != self.processes
            else "so did another"
        )
        raise ClusterError(f"a process came as rank {rank} of {processes}; {but}")

    def _check(self) -> None:
        """All must run the same versions: a step is one program."""
        ours = self._hellos[0]["versions"]
        faults = [
            f"rank {rank} has {name} {theirs or 'unknown'}, rank 0 has {ours[name] or 'unknown'}"
            for rank, one in sorted(self._hellos.items())
            for name, theirs in one["versions"].items()
            if theirs != ours[name]
        ]
        if faults:
            raise ClusterError("the processes are not alike: " + "; ".join(faults))


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'those' if len(ranks) > 1 else 'that'} of rank {', '.join(map(str, ranks))}"


class _Link:
    """The connection with one follower, and the process that it has at the moment."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self.process: RemoteProcess | None = None
        self.lost = False
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message, if there is still somebody."""
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
                    self.process.heard(message)
        except (EOFError, OSError):
            self._lose()

    def _lose(self) -> None:
        self.lost = True
        if self.process is not None:
            self.process.ended(LOST, ["the connection to its host was lost"])


class RemoteProcess:
    """A worker process on a follower's host.

    Args:
      link: to the follower.
      start: what to start.
      hear: is given each line of its output, and None after the last.
    """

    def __init__(self, link: _Link, start: StartOrder, hear: Hear) -> None:
        self.attempt = start["job"]["attempt"]
        self._link = link
        self._hear = hear
        self._over = threading.Event()
        self._code: int | None = None
        self._tail: list[str] = []
        self._killed_by_kernel: bool | None = None
        link.process = self
        if link.lost:
            self.ended(LOST, ["the connection to its host was lost before"])
        link.tell({"start": start})

    def heard(self, message: Mapping[str, Any]) -> None:
        """The follower has said something."""
        match message:
            case {"said": line}:
                self._hear(line)
            case {"ended": code, "tail": tail, "killed_by_kernel": killed_by_kernel}:
                self._killed_by_kernel = killed_by_kernel
                self.ended(code, tail)

    def ended(self, code: int, tail: list[str]) -> None:
        """It is over."""
        if not self._over.is_set():
            self._code, self._tail = code, tail
            self._over.set()
            self._hear(None)

    def answer(self, line: str) -> None:
        """Send a line to its stdin."""
        self._link.tell({"say": line})

    def code(self, timeout_s: float) -> int | None:
        """Its exit code, negative for a signal; None if it has not ended by then."""
        self._over.wait(timeout_s)
        return self._code

    def stopped(self) -> bool:
        """Whether it is held by a signal: that is not known of another host."""
        return False

    def tail(self) -> list[str]:
        """The last lines of its stderr."""
        return self._tail

    def turn(self) -> tuple[str, float]:
        """That is told by rank 0, which is not remote."""
        return "", 0.0

    def killed_by_kernel(self) -> bool | None:
        """Whether, until its end, the kernel killed for want of memory; None where unknown."""
        return self._killed_by_kernel

    def kill(self) -> None:
        """End it, and whatever it started."""
        if not self._over.is_set():
            self._link.tell({"kill": True})
            self._over.wait(_KILL_S)
