"""CPU time of the threads and processes that users' files start, in the turns of other arms.

Each belongs to the file that was running when it appeared. Threads of XLA's pools do not count,
even if they call back into Python, nor do those of the harness. Processes are those that the main
thread has started, and what these have started, daemons included.
"""

import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.records import numbers
from bench.records.host import shown

SHARE = 0.1
"""A file is refused if its threads use more than this share of a core in other arms' turns. On a
loaded host the limit is lower: this share of the CPU time that the whole process used, or that
the main thread could get, whichever is more."""
LEAST_S = 0.1
"""CPU seconds up to which a file is not refused: on a busy host, other work is charged to it."""
IDLE_S = 0.01
"""Most CPU seconds of an idle thread."""
_TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
_HARNESS = f"{Path(__file__).parent}{os.sep}"

Worker = threading.Thread | int
"""A thread, or the id of a process."""


class FileThreads:
    """Watches the threads and processes that appear after its creation.

    `guard` is the process that adopts daemons; 0 if there is none.
    """

    def __init__(self, guard: int = 0) -> None:
        self._guard = guard
        self._known: set[Worker] = {*threading.enumerate(), *self._processes()}
        self._used_ns: dict[Worker, int] = {}
        self._owners: dict[Worker, str] = {}
        self.begin()

    def begin(self) -> None:
        """Reset the recorded CPU times, as the rounds begin."""
        self._turns: defaultdict[str, Any] = defaultdict(float)
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._at = _readings()

    def look(self, name: str) -> None:
        """Record the CPU time since the last call, during the turn of `name`."""
        began, self._at = self._at, _readings()
        present: set[Worker] = {*threading.enumerate(), *self._processes()}
        for worker in present - self._known:
            self._known.add(worker)
            if name and not _is_not_of_a_file(worker):
                self._owners[worker], self._used_ns[worker] = name, 0
        for worker, owner in self._owners.items():
            before, now = self._used_ns[worker], _cpu_ns(worker)
            self._used_ns[worker] = max(before, now)
            if name not in {"", owner}:
                self._used_s[owner] += max(0, now - before) / 1e9
        for owner in set(self._owners.values()) - {name} if name else ():
            self._turns[owner] += self._at - began

    def _processes(self) -> set[int]:
        """Return the ids of this process's descendants, as far as the system shows them."""
        found: set[int] = set()
        new = {*_children_of(os.getpid()), *_children_of(self._guard)} - {os.getpid()}
        while new:
            found |= new
            new = {child for pid in new for child in _children_of(pid)} - found
        return found

    @property
    def busy(self) -> dict[str, float]:
        """CPU seconds in other arms' turns, by file, of the files whose threads were not idle."""
        return {owner: used_s for owner, used_s in self._used_s.items() if used_s > IDLE_S}

    def reasons(self) -> dict[str, str]:
        """Return a reason against each file whose threads worked in other arms' turns, by file."""
        found = {}
        for owner, used_s in self._used_s.items():
            passed_s, all_s, ran_s, waited_s = self._turns[owner]
            got_s = passed_s * (ran_s / (ran_s + waited_s) if waited_s else 1.0)
            if used_s > max(LEAST_S, SHARE * min(passed_s, max(all_s, got_s))):
                found[owner] = (
                    f"its threads or processes used {numbers.si(used_s, 's')} of CPU time in the "
                    f"{numbers.si(passed_s, 's')} in which other arms had their turns"
                )
        return found


def _children_of(pid: int) -> list[int]:
    """Return the processes that the main thread of a process has started, or has adopted."""
    return [int(word) for word in shown(f"/proc/{pid}/task/{pid}/children").split()]


def _is_not_of_a_file(thread: Worker) -> bool:
    """Whether a thread is the harness's, or a native one that calls back into Python.

    What a thread says about itself, such as its target's module, may be forged: its stack decides.
    """
    if isinstance(thread, int):
        return False
    if type(thread) is threading._DummyThread:  # noqa: SLF001 - has no public name
        return True
    frame, files = sys._current_frames().get(thread.ident or 0), list[str]()  # noqa: SLF001
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    starting = threading.Thread.run.__code__.co_filename
    return next((f for f in reversed(files) if f != starting), "").startswith(_HARNESS)


def _readings() -> np.ndarray:
    """Return the time, this process's CPU time, and its main thread's time run and waited, in s."""
    main_s = np.array(_scheduled_ns(threading.main_thread())) / 1e9
    return np.array([time.monotonic(), time.process_time(), *main_s])


def _cpu_ns(worker: Worker) -> int:
    """Return the CPU nanoseconds of a thread or a process; 0 if the system does not show them."""
    if isinstance(worker, threading.Thread):
        return _scheduled_ns(worker)[0]
    return sum(map(int, shown(f"/proc/{worker}/stat").rpartition(")")[2].split()[11:13])) * _TICK_NS


def _scheduled_ns(thread: threading.Thread) -> tuple[int, int]:
    """Return the nanoseconds that a thread ran, and waited for a core; zeros if not shown."""
    figures = shown(f"/proc/self/task/{thread.native_id}/schedstat").split()
    ran, waited, *_ = map(int, figures or (0, 0))
    return ran, waited
