"""CPU time of the threads that users' files start, in the turns of other arms.

A thread belongs to the file that was running when the thread appeared. Threads of XLA's pools do
not count, even if they call back into Python, nor do those of the harness.
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

SHARE = 0.1
"""A file is refused if its threads use more than this share of a core in other arms' turns. On a
loaded host, less: a share of what all threads used, or of what the main one got, if that is more.
"""
LEAST_S = 0.1
"""CPU seconds up to which it is not refused, because a busy host books other work in between."""
IDLE_S = 0.01
"""Most CPU seconds of an idle thread."""
_HARNESS = f"{Path(__file__).parent}{os.sep}"


class FileThreads:
    """Watches the threads that appear after its creation."""

    def __init__(self) -> None:
        self._known = set(threading.enumerate())
        self._used_ns: dict[threading.Thread, int] = {}
        self._owners: dict[threading.Thread, str] = {}
        self.begin()

    def begin(self) -> None:
        """Reset the threads' CPU time, as the rounds begin."""
        self._turns: defaultdict[str, Any] = defaultdict(float)
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._at = _readings()

    def look(self, name: str) -> None:
        """Record the threads' CPU time since the last call, during the turn of `name`."""
        began, self._at = self._at, _readings()
        for thread in set(threading.enumerate()) - self._known:
            self._known.add(thread)
            if name and not _is_nobodys(thread):
                self._owners[thread], self._used_ns[thread] = name, 0
        for thread, owner in self._owners.items():
            before, now = self._used_ns[thread], _scheduled_ns(thread)[0]
            self._used_ns[thread] = max(before, now)
            if name not in {"", owner}:
                self._used_s[owner] += max(0, now - before) / 1e9
        for owner in set(self._owners.values()) - {name} if name else ():
            self._turns[owner] += self._at - began

    @property
    def busy(self) -> dict[str, float]:
        """CPU seconds in other arms' turns, by file, of those whose threads were not idle."""
        return {owner: used_s for owner, used_s in self._used_s.items() if used_s > IDLE_S}

    def reasons(self) -> dict[str, str]:
        """Return, by file, a reason for each whose threads worked in other arms' turns."""
        found = {}
        for owner, used_s in self._used_s.items():
            passed_s, all_s, ran_s, waited_s = self._turns[owner]
            got_s = passed_s * (ran_s / (ran_s + waited_s) if waited_s else 1.0)
            if used_s > max(LEAST_S, SHARE * min(passed_s, max(all_s, got_s))):
                found[owner] = (
                    f"its threads used {numbers.si(used_s, 's')} of CPU time in the "
                    f"{numbers.si(passed_s, 's')} in which other arms had their turns"
                )
        return found


def _is_nobodys(thread: threading.Thread) -> bool:
    """Whether a thread is the harness's, or a native one that calls back into Python.

    What a thread says of itself, such as its target's module, may be forged. Its stack tells.
    """
    if type(thread) is threading._DummyThread:  # noqa: SLF001 - has no public name
        return True
    frame, files = sys._current_frames().get(thread.ident or 0), list[str]()  # noqa: SLF001
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    starting = threading.Thread.run.__code__.co_filename
    return next((f for f in reversed(files) if f != starting), "").startswith(_HARNESS)


def _readings() -> np.ndarray:
    """Return the time, this process's CPU time, and how long its main thread ran and waited."""
    main_s = np.array(_scheduled_ns(threading.main_thread())) / 1e9
    return np.array([time.monotonic(), time.process_time(), *main_s])


def _scheduled_ns(thread: threading.Thread) -> tuple[int, int]:
    """Return how long a thread ran so far, and how long it waited for a core.

    Both are 0 if the system does not show it or the thread has ended.
    """
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text("ascii")
    except OSError:
        return 0, 0
    ran, waited, _ = map(int, text.split())
    return ran, waited
