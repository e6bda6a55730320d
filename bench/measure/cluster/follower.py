"""A process that is not of rank 0: starts workers as it is told, and passes on what they say."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from importlib.metadata import version
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import Any, TypedDict

from bench.measure.cluster.membership import COME_S, ClusterError, Membership
from bench.measure.hosts import Order, start_process
from bench.measure.processes.group import LocalProcess
from bench.plan.distributed_config import DistributedConfig
from bench.records.host import describe_code, host_id
from bench.records.messages import Job
from bench.records.variants import Variant

LEFT_ALONE = 1
"""Exit code of a follower whose leader is gone. It is 0 if the leader has ended the run, however
that went: rank 0's exit code speaks for all, and a launcher that ends a job as soon as any process
fails must not end rank 0 while it says what was wrong."""

TERMINATION = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that end a run as Ctrl-C does. The second is the one that mpirun passes on."""

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
_POLL_S = 0.2


class Hello(TypedDict):
    """What a process says of itself when it comes."""

    rank: int
    processes: int
    """That it believes there are."""
    host: str
    cores: list[int]
    versions: dict[str, str]
    """Of packages, and the commit of the checkout; empty where that is not of git."""


class StartOrder(TypedDict):
    """A bench.measure.hosts.Order, as it is sent, and what this process has to know beside it."""

    job: Job
    platform: str
    devices: int
    processes: int
    variant: str
    """Empty for none."""
    coordinator: str
    rank: int
    place: int
    """Of the process among those of its host, of which there are `neighbours`."""
    neighbours: int


def hello(config: DistributedConfig) -> Hello:
    """About this process."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return Hello(
        rank=config.rank,
        processes=config.world_size,
        host=host_id(),
        cores=sorted(cores) or [*range(os.cpu_count() or 1)],
        versions={
            **{name: version(name) for name in _PACKAGES},
            "lockstep": describe_code()["commit"] or "",
        },
    )


def follow(member: Membership) -> int:
    """Do what the leader says until it says that the run has ended.

    Returns:
      The exit code of this process.

    Raises:
      ClusterError: it cannot be reached.
    """
    with _connect(member) as connection:
        # The leader hears these as well, and ends the run in order.
        for number in (signal.SIGINT, *TERMINATION):
            signal.signal(number, signal.SIG_IGN)
        return _Follower(connection, hello(member.config)).follow()


def _connect(member: Membership) -> Connection[Any, Any]:
    address = (member.config.master_addr, member.config.master_port)
    until = time.monotonic() + COME_S
    while True:
        try:
            return _knock(address, member.token)
        except AuthenticationError:
            raise ClusterError(f"{member.config.coordinator} is of another run") from None
        except (EOFError, OSError) as error:
            if time.monotonic() > until:
                raise ClusterError(
                    f"the process of rank 0 cannot be reached at {member.config.coordinator} "
                    f"within {COME_S:g} s: {error}"
                ) from error
            time.sleep(_POLL_S)


def _knock(address: tuple[str, int], token: bytes) -> Connection[Any, Any]:
    connection: Connection[Any, Any] = Client(address)
    if not connection.poll(COME_S):
        raise TimeoutError("somebody listens there who says nothing")
    answer_challenge(connection, token)
    deliver_challenge(connection, token)
    return connection


class _Follower:
    def __init__(self, connection: Connection[Any, Any], own: Hello) -> None:
        self._connection = connection
        self._hello = own
        self._lock = threading.Lock()
        self._process: LocalProcess | None = None
        self._attempt = ""
        """Which of the leader's processes it is."""

    def follow(self) -> int:
        try:
            self._tell(self._hello)
            while True:
                if self._connection.poll(_POLL_S):
                    message = json.loads(self._connection.recv_bytes())
                    if "end" in message:
                        return 0
                    self._obey(message)
                self._tell_if_ended()
        except (EOFError, OSError):
            return LEFT_ALONE
        finally:
            if self._process is not None:
                self._process.kill()

    def _obey(self, message: dict[str, Any]) -> None:
        match message:
            case {"start": start}:
                self._attempt = start["job"]["attempt"]
                self._process = _start(start, self._pass_on)
            case {"say": line} if self._process is not None:
                self._process.answer(line)
            case {"kill": _} if self._process is not None:
                self._process.kill()

    def _tell_if_ended(self) -> None:
        code = None if self._process is None else self._process.code(0)
        if self._process is not None and code is not None:
            self._process.kill()  # what it left behind, and waits for its last lines
            self._tell(
                {
                    "attempt": self._attempt,
                    "ended": code,
                    "tail": self._process.tail(),
                    "killed_by_kernel": self._process.killed_by_kernel(),
                }
            )
            self._process = None

    def _pass_on(self, line: str | None) -> None:
        if line is not None:
            self._tell({"attempt": self._attempt, "said": line})

    def _tell(self, message: object) -> None:
        with self._lock:
            self._connection.send_bytes(json.dumps(message).encode())


def _start(order: StartOrder, hear: Any) -> LocalProcess:
    return start_process(
        Order(
            job=order["job"],
            platform=order["platform"],
            devices=order["devices"],
            processes=order["processes"],
            variant=Variant.parse(order["variant"]) if order["variant"] else None,
        ),
        order["coordinator"],
        order["rank"],
        hear,
        neighbours=order["neighbours"],
        place=order["place"],
    )
