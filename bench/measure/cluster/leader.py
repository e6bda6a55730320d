"""The leader of a cluster, rank 0, and the followers, which start workers at its request."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, TypedDict, cast

from bench.measure.cluster.membership import COME_S, ClusterError, Membership
from bench.measure.processes.group import Ended, Hosts, LocalProcess, Order, Process
from bench.measure.processes.guarded import OnLine
from bench.plan.content_keys import read_files
from bench.plan.distributed_config import DistributedConfig
from bench.plan.option_values import BadInput
from bench.records.host import cores, describe_code, host_id, installed
from bench.records.messages import HOST_LOST, Catalogue

LEFT_ALONE = 1
"""Exit code of a follower that has lost its leader.

If the leader has ended the run, a follower exits with 0 whatever the outcome: only rank 0 reports
it, and a launcher that kills a job when any process fails must not interrupt rank 0's report."""

TERMINATION = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that end a run as Ctrl-C does. mpirun forwards the second one."""

_POLL_S = 0.1
_SILENCE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 9, "TCP_USER_TIMEOUT": 120_000}
"""Options of TCP that end a connection after two minutes without an answer of the other's kernel.
The last one, in milliseconds, is Linux's and covers data that is not acknowledged."""


class Hello(TypedDict):
    """The description of a process that connects to the leader."""

    rank: int
    processes: int
    """Number of processes in its configuration."""
    host: str
    cores: list[int]
    versions: dict[str, str]
    """Versions of packages, and the commit of the checkout (empty outside of git)."""


def hello(config: DistributedConfig) -> Hello:
    """Describe this process."""
    versions = installed(("jax", "jaxlib", "flax", "optax", "numpy"))
    versions["lockstep"] = describe_code()["commit"] or ""
    return Hello(
        rank=config.rank,
        processes=config.world_size,
        host=host_id(),
        cores=sorted(cores()),
        versions=versions,
    )


def follow(member: Membership) -> int:
    """Obey the leader until it ends the run; return the exit code, or raise ClusterError."""
    with _connect(member) as connection:
        # The leader receives these signals as well, and shuts the run down.
        for number in (signal.SIGINT, *TERMINATION):
            signal.signal(number, signal.SIG_IGN)
        return _Follower(connection).follow(hello(member.config))


def _connect(member: Membership) -> Connection[Any, Any]:
    address = (member.config.master_addr, member.config.master_port)
    until = time.monotonic() + COME_S
    while True:
        try:
            connection = _framed(socket.create_connection(address, COME_S))
            if not connection.poll(COME_S):
                raise TimeoutError("the process that listens there does not answer")
            answer_challenge(connection, member.token)
            deliver_challenge(connection, member.token)
        except AuthenticationError:
            raise ClusterError(f"{member.config.coordinator} belongs to another run") from None
        except (EOFError, OSError) as error:
            if time.monotonic() > until:
                raise ClusterError(
                    f"the process of rank 0 cannot be reached at {member.config.coordinator} "
                    f"within {COME_S:g} s: {error}"
                ) from error
            time.sleep(_POLL_S)
        else:
            return connection


def _framed(line: socket.socket) -> Connection[Any, Any]:
    """Frame a connection; it breaks if the other host stays silent, as one without power does."""
    line.setblocking(True)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SILENCE.items():
        if hasattr(socket, name):  # otherwise the system's own, often two hours
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(line.detach())


class _Follower:
    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._process: LocalProcess | None = None
        self._attempt = ""
        """Identifies the process in messages to the leader."""

    def follow(self, own: Hello) -> int:
        try:
            self._send(own)
            while True:
                if self._connection.poll(_POLL_S):
                    match json.loads(self._connection.recv_bytes()):
                        case {"end": _}:
                            return 0
                        case {"start": order}:
                            self._attempt = order["job"]["attempt"]
                            self._process = LocalProcess(order, self._forward)
                        case {"say": line} if self._process is not None:
                            self._process.send_line(line)
                        case {"hash": paths}:
                            found = {path: _hashes(path) for path in paths}
                            self._send({"hashes": found, "host": socket.gethostname()})
                        case {"kill": _} if self._process is not None:
                            self._process.kill()
                self._report_end()
        except (EOFError, OSError):
            sys.stderr.write(f"error: rank {own['rank']} has lost its connection to rank 0\n")
            return LEFT_ALONE
        finally:
            if self._process is not None:
                self._process.kill()

    def _report_end(self) -> None:
        if self._process is not None and self._process.code(0) is not None:
            # This also kills processes that outlive the worker, and waits for its last lines.
            self._process.kill()
            self._send({"attempt": self._attempt, **self._process.ended()})
            self._process = None

    def _forward(self, line: str | None) -> None:
        if line is not None:
            self._send({"attempt": self._attempt, "said": line})

    def _send(self, message: object) -> None:
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())


LOST = 255
"""Exit code of a worker whose host no longer answers."""

_KILL_S = 10.0
_PATIENCE_S = 10.0
"""Time after which the leader reports which processes it is waiting for."""


class Leader(Hosts):
    """The hosts of all processes: that of rank 0, and those of the followers.

    Raises ClusterError if some processes did not connect in time, or run other versions or files.
    """

    def __init__(self, member: Membership) -> None:
        self.config: DistributedConfig = member.config
        self.address, self.processes = member.config.master_addr, member.config.world_size
        self._hellos: dict[int, Hello] = {0: hello(member.config)}
        self._links: dict[int, RemoteProcess] = {}
        self._arrived: queue.Queue[tuple[Hello, Connection[Any, Any]]] = queue.Queue()
        """Processes that have connected and proved that they know the token."""
        try:
            self._gather(member)
            self._check_versions()
        except ClusterError:
            self.close()
            raise

    def extend(self, catalogue: Catalogue) -> Catalogue:
        """Add up the resources; a core that several processes may use counts once."""
        self._check_files(catalogue)
        hellos = self._hellos.values()
        cores = {(hello["host"], core) for hello in hellos for core in hello["cores"]}
        devices = catalogue["device_count"]
        if catalogue["platform"] != "cpu":
            devices = max(1, devices // len(self._on_host_of(0, self.processes))) * self.processes
        more = {"processes": self.processes, "usable_cores": len(cores), "device_count": devices}
        return cast("Catalogue", {**catalogue, **more})

    def start(self, order: Order, rank: int, on_line: OnLine) -> Process:
        """Start the launch's process of this rank on its host."""
        own: Order = {**order, "ranks": self._on_host_of(rank, order["place"]["processes"])}
        if not rank:
            return super().start(own, rank, on_line)
        self._links[rank].start({**own, "place": own["place"] | {"rank": rank}}, on_line)
        return self._links[rank]

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
            server.settimeout(_POLL_S)
            while missing := [rank for rank in range(self.processes) if rank not in self._hellos]:
                with contextlib.suppress(TimeoutError, ConnectionError):
                    arguments = (server.accept()[0], member.token)
                    # In a thread of its own, because a stranger may stay silent forever.
                    threading.Thread(target=self._admit, args=arguments, daemon=True).start()
                with contextlib.suppress(queue.Empty):
                    self._receive(*self._arrived.get_nowait())
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
                    where = f"rank 0 cannot listen at {self.config.coordinator}"
                    why = str(error.strerror).partition(" (while")[0]  # it repeats the address
                    raise ClusterError(f"{where}: {why}") from error
            time.sleep(0.5)

    def _admit(self, accepted: socket.socket, token: bytes) -> None:
        """Authenticate a process that has connected."""
        connection = _framed(accepted)
        try:
            deliver_challenge(connection, token)
            answer_challenge(connection, token)
            self._arrived.put((json.loads(connection.recv_bytes()), connection))
        except (AuthenticationError, EOFError, OSError):
            connection.close()

    def _receive(self, arrived: Hello, connection: Connection[Any, Any]) -> None:
        link, rank, processes = RemoteProcess(connection), arrived["rank"], arrived["processes"]
        if processes == self.processes and rank not in self._hellos:
            self._hellos[rank], self._links[rank] = arrived, link
            return
        link.send({"end": True})
        other = f"but rank 0 expects {self.processes} processes"
        fault = other if processes != self.processes else "and so did another process"
        raise ClusterError(f"a process connected as rank {rank} of {processes}, {fault}")

    def _check_versions(self) -> None:
        """Check that all processes have the same versions, because they run one program."""
        ours = self._hellos[0]["versions"]
        faults = [
            f"rank {rank} has {name} {theirs.get(name) or 'unknown'}, "
            f"rank 0 has {ours.get(name) or 'unknown'}"
            for rank, theirs in ((r, one["versions"]) for r, one in sorted(self._hellos.items()))
            for name in sorted(ours.keys() | theirs.keys())
            if theirs.get(name) != ours.get(name)
        ]
        if faults:
            raise ClusterError("the processes have different versions: " + "; ".join(faults))

    def _check_files(self, catalogue: Catalogue) -> None:
        """Check that the user's files, and all that they import, are the same on every host."""
        paths = catalogue["implementation_paths"] + catalogue["workload_paths"]
        ours, faults = {path: _hashes(path) for path in paths}, []
        for rank, link in sorted(self._links.items()) if paths else ():
            answer = link.ask({"hash": paths})
            for path in paths:
                who, theirs = f"rank {rank}, on host {answer['host']}", answer["hashes"][path]
                both = theirs.keys() & ours[path].keys()
                changed = sorted(name for name in both if theirs[name] != ours[path][name])
                names = [*changed, *sorted(theirs.keys() ^ ours[path].keys())]
                if not theirs:
                    faults.append(f"{who}, cannot read {path}")
                elif names:  # files that only one of them imports come last
                    of = "" if names[0] == Path(path).name else f"{names[0]}, which is imported by "
                    faults.append(f"{who}, has another {of}{path} than rank 0")
        if faults:
            raise ClusterError("the processes have different files: " + "; ".join(faults))


def _hashes(path: str) -> dict[str, str]:
    """Hash a file and what it imports from the project or its own folder; empty if unreadable."""
    with contextlib.suppress(BadInput):
        return read_files(Path(path)).hashes
    return {}


def _lost(*tail: str) -> Ended:
    return Ended(ended=LOST, tail=[*tail], killed_by_kernel=None)


class RemoteProcess(Process):
    """The worker process on the host of a follower, a new one in each launch."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._lost = False
        self._attempt = ""
        self._on_line: OnLine = lambda _: None
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._over = threading.Event()
        self._over.set()
        self._ended = _lost()
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, order: Order, on_line: OnLine) -> None:
        """Start the process of another launch, whose output `on_line` receives."""
        self._attempt, self._on_line = order["job"]["attempt"], on_line
        self._over.clear()
        if self._lost:
            self._lose(" before")
        self.send({"start": order})

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
                match json.loads(self._connection.recv_bytes()):
                    case {"attempt": attempt} if attempt != self._attempt:
                        pass
                    case {"said": line}:
                        self._on_line(line)
                    case {"hashes": _} as answer:
                        self._answers.put(answer)
                    case {"ended": _} as ended:
                        self._end(cast("Ended", ended))
        except (EOFError, OSError):
            self._lose()

    def _lose(self, when: str = "") -> None:
        self._lost = True
        self._answers.put({})
        self._end(_lost(f"{HOST_LOST}{when}"))

    def _end(self, ended: Ended) -> None:
        """Record how the process ended, unless it has ended before."""
        if not self._over.is_set():
            self._ended = ended
            self._over.set()
            self._on_line(None)

    def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a question, and return the answer; ClusterError if there is none."""
        self.send(message)
        with contextlib.suppress(queue.Empty):
            if answer := self._answers.get(timeout=COME_S):
                return answer
        raise ClusterError("the connection to a host was lost before the run began")

    def send_line(self, line: str) -> None:
        """Send a line to its stdin."""
        self.send({"say": line})

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it is still running."""
        return self._ended["ended"] if self._over.wait(timeout_s) else None

    def ended(self) -> Ended:
        """Describe the end of a process that has ended."""
        return self._ended

    def kill(self) -> None:
        """Kill it and everything that it started."""
        if not self._over.is_set():
            self.send({"kill": True})
            if not self._over.wait(_KILL_S):
                self._end(_lost("its host does not answer"))
