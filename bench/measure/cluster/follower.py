"""Followers: processes other than rank 0, which start workers and forward their output."""

from __future__ import annotations

import json
import signal
import threading
import time
from importlib.metadata import version
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any, TypedDict

from bench.measure.cluster.membership import COME_S, ClusterError, Membership
from bench.measure.hosts import start_process
from bench.measure.processes.group import LocalProcess
from bench.plan.distributed_config import DistributedConfig
from bench.records.host import cores, describe_code, host_id

LEFT_ALONE = 1
"""Exit code of a follower that has lost its leader.

If the leader has ended the run, a follower exits with 0 whatever the outcome: only rank 0 reports
it, and a launcher that kills a job when any process fails must not interrupt rank 0's report."""

TERMINATION = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that end a run as Ctrl-C does. mpirun forwards the second one."""

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
_POLL_S = 0.2


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
    versions = {name: version(name) for name in _PACKAGES}
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
            connection: Connection[Any, Any] = Client(address)
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
                            self._process = start_process(order, self._forward)
                        case {"say": line} if self._process is not None:
                            self._process.say(line)
                        case {"kill": _} if self._process is not None:
                            self._process.kill()
                self._report_end()
        except (EOFError, OSError):
            return LEFT_ALONE
        finally:
            if self._process is not None:
                self._process.kill()

    def _report_end(self) -> None:
        if self._process is not None and self._process.code(0) is not None:
            # It also kills processes that outlive it, and waits for the last lines.
            self._process.kill()
            self._send({"attempt": self._attempt, **self._process.ended()})
            self._process = None

    def _forward(self, line: str | None) -> None:
        if line is not None:
            self._send({"attempt": self._attempt, "said": line})

    def _send(self, message: object) -> None:
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())
