"""The processes of a foreign arm, and the channel to them.

Each process reads requests from stdin and writes answers to stdout, both as lines of JSON. Arrays
are passed in safetensors files, in shared memory where the system has it.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Thread
from typing import Any

import psutil

from bench.contract.foreign import read_arrays, write_arrays
from bench.records.host import shown
from bench.records.paths import CHECKOUT, ROOT
from bench.records.printable import ending, is_telling, readable, shortened
from bench.records.temporary_folders import temporary_folder
from bench.records.variants import THREADS, Variant
from bench.worker.prove.failures import ChildError, UnsupportedError, WrongStepError

Arrays = dict[str, Any]
Answers = list[dict[str, Any]]

LONGEST_ANSWER = 1 << 16
"""Bytes without a newline after which a child's output is not accepted as an answer."""
LEAVE_S = 2.0
"""Seconds in which a child must exit once its stdin is closed."""

_NEEDED: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("why_unsupported", "reason"): lambda own: own is None or isinstance(own, str),
    ("build", "versions"): lambda own: isinstance(own, dict),
    ("run", "ns"): lambda own: type(own) in (int, float) and 0 <= own <= sys.maxsize,  # not NaN
    ("run", "loss"): lambda own: type(own) in (int, float),
}
"""Keys that the answer to a request must have, and whether a value is valid."""


class Children:
    """The processes of one foreign arm: one, or one per device.

    The variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are
    those of torchrun, `variables` those of a variant. UnsupportedError if the command cannot start.
    """

    def __init__(
        self, command: Sequence[str], processes: int, threads: int, variables: Mapping[str, str]
    ) -> None:
        self.threads = threads
        self.closed = False
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        path = filter(None, [str(ROOT) if CHECKOUT else "", os.environ.get("PYTHONPATH")])
        own = {"PYTHONPATH": os.pathsep.join(path), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own |= dict.fromkeys(THREADS, str(threads))
        own |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
        environment = Variant("", variables).applied(os.environ) | own
        self._processes: list[Any] = []
        self._readers: list[Thread] = []
        self._last_lines = [""] * processes
        """The last telling line of each process's stderr."""
        for rank in range(processes):
            try:
                process = subprocess.Popen(  # noqa: S603 - the implementation's own command
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    start_new_session=True,
                )
            except OSError as error:
                self.close()
                if not isinstance(error, FileNotFoundError):
                    raise
                raise UnsupportedError(f"it needs {command[0]}, which is not installed") from error
            self._processes.append(process)
            if processes > 1 and hasattr(os, "SCHED_BATCH"):
                # Keeps a process that part of a message wakes from preempting the others.
                with contextlib.suppress(OSError):
                    os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
            self._readers.append(Thread(target=self._read_stderr, args=(rank,), daemon=True))
            self._readers[-1].start()
        self._counted: list[psutil.Process] = []
        """The processes whose CPU time counts."""

    def __len__(self) -> int:
        return len(self._processes)

    def ask(self, ask: str, arrays: Arrays | None = None, **more: Any) -> Answers:
        """Send a request, with arrays and further keys, to all processes; return answers by rank.

        UnsupportedError if a package is not installed; WrongStepError or MemoryError if a child
        raised one; ChildError if it died, raised another, or broke the protocol.
        """
        with contextlib.ExitStack() as folder:
            if arrays is not None:
                path = folder.enter_context(temporary_folder(shared=True)) / "arrays"
                try:
                    write_arrays(path, arrays)
                except KeyError as error:
                    why = f"arrays of {error.args[0]} cannot be passed to its processes"
                    raise UnsupportedError(why) from error
                more["arrays"] = str(path)
            ((_, answers),) = self.exchange([[{"ask": ask, **more}]] * len(self))
            return answers

    def params(self) -> list[Arrays]:
        """Return all processes' parameters; ChildError as in `ask`, or if a file cannot be read."""
        with temporary_folder(shared=True) as folder:
            paths = [str(folder / f"{rank}") for rank in range(len(self))]
            self.exchange([[{"ask": "params", "arrays": path}] for path in paths])
            try:
                return [read_arrays(path) for path in paths]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ChildError(f"its file of parameters cannot be read: {error}") from error

    def exchange(self, requests: Sequence[Sequence[dict[str, Any]]]) -> list[tuple[int, Answers]]:
        """Send each process all of its requests at once; it answers them one by one.

        Return, for each request, the time of its last answer by time.perf_counter_ns, and the
        answers by rank. Errors are those of `ask`, and end all processes.
        """
        ask = requests[0][0]["ask"]
        try:
            lines = [b"".join(json.dumps(one).encode() + b"\n" for one in own) for own in requests]
            times, texts = self._exchanged(ask, lines, len(requests[0]))
            answers = [[_parsed(ask, text) for text in own] for own in texts]
        except BaseException:
            self.close()
            raise
        return list(zip(times, map(list, zip(*answers, strict=True)), strict=True))

    def _exchanged(
        self, ask: str, lines: list[bytes], count: int
    ) -> tuple[list[int], list[list[bytes]]]:
        """Return when each of `count` answers was complete in all processes, and texts by rank."""
        texts, times = [b""] * len(self), [0] * count
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                with contextlib.suppress(OSError):  # a process that has ended closes its stdout too
                    process.stdin.write(lines[rank])
                    process.stdin.flush()
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while selector.get_map():
                for key, _ in selector.select():
                    rank, before = key.data, texts[key.data].count(b"\n")
                    texts[rank] += (more := os.read(key.fd, LONGEST_ANSWER))
                    now = time.perf_counter_ns()
                    if not more:
                        raise ChildError(self._ending(rank, ask))
                    *whole, rest = texts[rank].split(b"\n")
                    for place in range(before, min(len(whole), count)):
                        times[place] = now
                    if (len(whole) >= count and not rest) or len(rest) > LONGEST_ANSWER:
                        selector.unregister(key.fileobj)
        return times, [text.split(b"\n", count - 1) for text in texts]

    def _ending(self, rank: int, ask: str) -> str:
        """Describe how a process that closed its stdout ended."""
        process = self._processes[rank]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
            self._readers[rank].join(LEAVE_S)
        how = "closed its output" if process.returncode is None else ending(process.returncode)
        which = f"process {rank} of {len(self)}" if len(self) > 1 else "its process"
        outcome = f"{which} {how} when asked for {ask!r}"
        return readable("; its last line: ".join(filter(None, (outcome, self._last_lines[rank]))))

    def _read_stderr(self, rank: int) -> None:
        stderr = self._processes[rank].stderr
        with contextlib.suppress(OSError, ValueError), stderr:
            for line in iter(lambda: stderr.readline(LONGEST_ANSWER), b""):
                text = line.decode(errors="replace")
                if is_telling(text):
                    self._last_lines[rank] = text.strip()
                sys.stderr.write(text)

    def find_counted(self) -> None:
        """Find the processes whose CPU time counts: the children and their descendants so far."""
        with contextlib.suppress(psutil.Error):
            own = [psutil.Process(process.pid) for process in self._processes]
            self._counted = [*own, *(one for each in own for one in each.children(recursive=True))]

    def cpu_s(self) -> float:
        """CPU seconds that the counted processes have used so far, at a resolution of 10 ms."""
        total = 0.0
        for process in self._counted:
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])  # user and system
        return total

    def waited_ns(self) -> int:
        """Nanoseconds that the main threads, also the worker's, waited for a core; 0 if unknown."""
        names = ("self", *(process.pid for process in self._processes))
        figures = (shown(f"/proc/{name}/schedstat").split() for name in names)
        return sum(int(waited) for _, waited, *_ in filter(None, figures))

    def close(self) -> None:
        """End the processes and their process groups; later calls do nothing."""
        if self.closed:
            return
        self.closed = True
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
        for thread in self._readers:
            thread.join(LEAVE_S)


def _parsed(ask: str, text: bytes) -> dict[str, Any]:
    answer = None
    with contextlib.suppress(ValueError):
        answer = json.loads(text)
    if not isinstance(answer, dict):
        said = readable(text.decode(errors="replace").partition("\n")[0][:60])
        raise ChildError(
            f"its process writes {said!r} to the channel, where the answer to {ask!r} belongs"
        )
    if "missing" in answer:
        raise UnsupportedError(f"it needs the package {answer['missing']}, which is not installed")
    if "error" in answer:
        error = readable(str(answer["error"]))
        if any(sign in error for sign in ("OutOfMemory", "MemoryError", "RESOURCE_EXHAUSTED")):
            raise MemoryError(error)
        kind, _, said = error.partition(": ")
        if kind == WrongStepError.__name__:  # of a JAX step, which its process checks
            raise WrongStepError(said)
        raise ChildError(f"its process raised {error} when asked for {ask!r}")
    for (request, key), is_valid in _NEEDED.items():
        if request == ask and not is_valid(answer.get(key, ...)):
            value = shortened(repr(answer[key])) if key in answer else "it is missing"
            raise ChildError(f"its answer to {ask!r} has no valid {key!r}: {value}")
    return answer
