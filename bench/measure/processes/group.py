"""The worker processes of a launch, which start and end together, and the hosts they run on."""

import contextlib
import json
import os
import queue
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypedDict

from bench.measure.environment import worker_cores, worker_environment
from bench.measure.processes.guarded import Guarded, OnLine
from bench.measure.processes.oom_kills import count_kills, killed_by_kernel
from bench.records.current_arm import Turns
from bench.records.messages import Catalogue, Job, Place, is_event
from bench.records.paths import module_command
from bench.records.printable import readable
from bench.records.variants import Variant

COMMAND: tuple[str, ...] = module_command("bench.worker")

_POLL_S = 0.2
FORGED = "a file writes to the worker's channel"
"""Beginning of the reason for a launch that is cut short because of what its worker sent."""
_LEAVE_S = 60.0
"""Time that a process may take to exit once its output is closed, or once rank 0 has exited."""


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


class Ended(TypedDict):
    """The end of a worker process."""

    ended: int
    """Exit code, negative for a signal."""
    tail: list[str]
    """The last lines of its stderr."""
    killed_by_kernel: bool | None
    """Whether the kernel killed a process of the host for memory; None if unknown."""


class Process(Protocol):
    """A worker process on this host or another one."""

    def send_line(self, line: str) -> None:
        """Queue a line for its stdin."""

    def code(self, timeout_s: float) -> int | None:
        """Wait for its exit code, negative for a signal; None if it is still running."""

    def ended(self) -> Ended:
        """Describe the end of a process that has ended."""

    def turn(self) -> tuple[str, float]:
        """Return the arm whose turn it is, or was at the end, and the seconds of that turn.

        Only rank 0, which is never remote, is asked: all processes take the same turns.
        """
        return "", 0.0

    def kill(self) -> None:
        """Kill it and everything that it started."""


@dataclass(frozen=True)
class End:
    """The end of a launch's processes."""

    code: int
    """Exit code of the first process that failed, or of rank 0."""
    rank: int
    late: str = ""
    """The deadline that passed; empty if none did."""


class Group(contextlib.ExitStack):
    """The processes of a launch; a context that kills them all.

    `start` starts the process of a rank. The callback that it gets receives each line of the
    process's output, and None after the last. Every event of the processes has this `attempt`,
    which distinguishes it from what a user's file writes to the same channel.
    """

    def __init__(self, start: Callable[[int, OnLine], Process], count: int, attempt: str) -> None:
        super().__init__()
        self._attempt = attempt
        self._lines: queue.Queue[tuple[int, str | None]] = queue.Queue()
        self._values: dict[int, Any] = {}
        self._talking: set[int] = set()
        """Ranks of the processes that have sent an event; before that, libraries may print."""
        self.processes: list[Process] = []
        try:
            for rank in range(count):
                self.processes.append(start(rank, partial(self._put, rank)))
                self.callback(self.processes[rank].kill)
        except BaseException:
            self.close()
            raise

    def _put(self, rank: int, line: str | None) -> None:
        self._lines.put((rank, line))

    def _exchange(self, rank: int, value: Any) -> None:
        """Add the value of one process; once all have sent one, send the list to each."""
        self._values[rank] = value
        if len(self._values) == len(self.processes):
            line = json.dumps([value for _, value in sorted(self._values.items())])
            self._values.clear()
            for process in self.processes:
                process.send_line(line)

    def follow(
        self, on_event: Callable[[int, dict[str, Any]], None], overdue: Callable[[float], str]
    ) -> End:
        """Pass on events until all processes have ended, one has failed, or a deadline has passed.

        `on_event` gets the rank and the event; `overdue` gets the seconds since the last event of
        any process, and returns the deadline that has passed, or an empty text.
        """
        last_event_at = time.monotonic()
        while True:
            rank, line = self._next_line()
            now = time.monotonic()
            if line is None:
                if (end := self._end(rank)) is not None:
                    return end
                continue
            if (event := self._parse(line)) is not None:
                last_event_at = now
                self._talking.add(rank)
                if event["event"] == "tell":
                    self._exchange(rank, event["value"])
                else:
                    on_event(rank, event)
            elif line.strip() and rank in self._talking:
                return self._abort(rank, f"{FORGED} {readable(line)[:100]!r}")
            if late := overdue(now - last_event_at):
                return self._abort(0, late)

    def _parse(self, line: str) -> dict[str, Any] | None:
        """Parse an event; return None for any other line."""
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and event.pop("attempt", None) == self._attempt:
                return event if is_event(event) else None
        return None

    def _end(self, rank: int) -> End | None:
        """Return the end of the launch if a process that has closed its output ends it."""
        code = self.processes[rank].code(_LEAVE_S)
        if code is None:
            return self._abort(rank, f"closed its output but did not end within {_LEAVE_S:g} s")
        if rank == 0 and code == 0:
            for process in self.processes:
                process.code(_LEAVE_S)
        return End(code, rank) if code or rank == 0 else None

    def _abort(self, rank: int, late: str) -> End:
        self.close()
        return End(self.processes[rank].code(_LEAVE_S) or 0, rank, late)

    def _next_line(self) -> tuple[int, str | None]:
        """Wait for a line and return it with its rank; an empty line after a silent interval."""
        try:
            return self._lines.get(timeout=_POLL_S)
        except queue.Empty:
            for process in self.processes:
                if process.code(0) is not None:
                    # A child process that outlives it may keep the pipe open.
                    process.kill()
            return 0, ""


class LocalProcess(Guarded):
    """A worker process on this host, with everything that it starts.

    If the launch has several processes, it runs under SCHED_BATCH where available: otherwise it
    would preempt the others whenever part of a message wakes it.
    """

    def __init__(self, order: Order, on_line: OnLine) -> None:
        platform, devices, place = order["platform"], order["devices"], order["place"].copy()
        job, processes, neighbours = order["job"], place["processes"], len(order["ranks"])
        index = order["ranks"].index(place["rank"])
        self._turns = Turns()
        self._oom_kills = count_kills()
        environment = worker_environment(platform, devices, processes) | self._turns.environment
        if programs := job.get("program_cache"):  # removed even if it is killed
            environment["TMPDIR"] = str(Path(programs).parent)
        if processes > 1:
            if platform != "cpu" and neighbours > 1:
                place["local_devices"] = [*range(index * devices, (index + 1) * devices)]
            job = {**job, "place": place}
        environment = Variant("", order["variables"]).applied(environment)
        cores = worker_cores(platform, devices, index, neighbours)
        super().__init__(COMMAND, environment, on_line, pass_fds=(self._turns.descriptor,))
        # The worker's threads inherit this, because it reads its job before it starts them.
        with contextlib.suppress(ProcessLookupError):
            if cores is not None:
                os.sched_setaffinity(self.pid, cores)
            if processes > 1 and hasattr(os, "SCHED_BATCH"):
                os.sched_setscheduler(self.pid, os.SCHED_BATCH, os.sched_param(0))
        self.send_line(json.dumps(job))

    def turn(self) -> tuple[str, float]:
        """Return the arm whose turn it is, or was at the end, and the seconds of that turn."""
        return self._turns.read()

    def ended(self) -> Ended:
        """Describe the end of a process that has ended."""
        by_kernel = killed_by_kernel(self._oom_kills)
        return Ended(ended=self.code(0) or 0, tail=[*self.tail], killed_by_kernel=by_kernel)

    def kill(self) -> None:
        """Kill it and everything that it started."""
        self._turns.close()
        super().kill()


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
        return LocalProcess({**order, "place": order["place"] | {"rank": rank}}, on_line)

    def close(self) -> None:
        """End the run on the other hosts."""


def free_port(address: str) -> int:
    """Return a free TCP port of one of this host's addresses."""
    with socket.create_server((address, 0)) as probe:
        return int(probe.getsockname()[1])
