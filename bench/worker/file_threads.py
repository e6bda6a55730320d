"""Python threads that users' files have started, and the CPU time that they take from other arms.

A thread belongs to the file that was running when the thread appeared. Threads of XLA's pools do
not count, even if they call back into Python, nor do those of the harness and of jax.
"""

import threading
import time
from collections import defaultdict
from pathlib import Path

from bench.records import numbers

SHARE = 0.1
"""A file is refused if its threads use more than this share of a core in other arms' turns."""
LEAST_S = 0.1
"""CPU seconds up to which it is not refused, because a busy host books other work in between."""
IDLE_S = 0.01
"""Most CPU seconds of an idle thread."""
_NOBODYS = ("bench.worker.", "jax", "grain.", "orbax.")


class FileThreads:
    """Watches the threads that appear after its creation."""

    def __init__(self) -> None:
        self._known = set(threading.enumerate())
        self._used_ns: dict[threading.Thread, int] = {}
        self._owners: dict[threading.Thread, str] = {}
        self.begin()

    def begin(self) -> None:
        """Reset the threads' CPU time, as the rounds begin."""
        self._others_s: defaultdict[str, float] = defaultdict(float)
        self._used_s: defaultdict[str, float] = defaultdict(float)
        self._at = time.monotonic()

    def look(self, name: str) -> None:
        """Record the threads' CPU time since the last call, during the turn of `name`."""
        began, self._at = self._at, time.monotonic()
        for thread in set(threading.enumerate()) - self._known:
            self._known.add(thread)
            if name and not _is_nobodys(thread):
                self._owners[thread], self._used_ns[thread] = name, 0
        for thread, owner in self._owners.items():
            before, now = self._used_ns[thread], _cpu_ns(thread)
            self._used_ns[thread] = max(before, now)
            if name not in {"", owner}:
                self._used_s[owner] += max(0, now - before) / 1e9
        for owner in set(self._owners.values()) - {name} if name else ():
            self._others_s[owner] += self._at - began

    @property
    def busy(self) -> dict[str, float]:
        """CPU seconds in other arms' turns, by file, of those whose threads were not idle."""
        return {owner: used_s for owner, used_s in self._used_s.items() if used_s > IDLE_S}

    def reasons(self) -> dict[str, str]:
        """Return, by file, a reason for each whose threads worked in other arms' turns."""
        return {
            owner: (
                f"its threads used {numbers.si(used_s, 's')} of CPU time in the "
                f"{numbers.si(self._others_s[owner], 's')} in which other arms had their turns"
            )
            for owner, used_s in self._used_s.items()
            if used_s > max(LEAST_S, SHARE * self._others_s[owner])
        }


def _is_nobodys(thread: threading.Thread) -> bool:
    """Whether a thread is the harness's or jax's, or a native one that calls back into Python."""
    target = getattr(thread, "_target", None) or type(thread).run
    module = str(getattr(target, "__module__", ""))
    return type(thread).__name__ == "_DummyThread" or module.startswith(_NOBODYS)


def _cpu_ns(thread: threading.Thread) -> int:
    """Return a thread's CPU time so far; 0 if the system does not show it or it has ended."""
    try:
        text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text("ascii")
    except OSError:
        return 0
    return int(text.split()[0])
