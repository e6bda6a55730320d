"""The counters of the kernel's out-of-memory killer.

A SIGKILL does not tell its sender, but Linux counts the kills of its out-of-memory killer: for the
whole system in /proc/vmstat (since 4.13), and for a control group in memory.events (version 2) or
memory.oom_control (version 1). The counters rise before the signal is sent.
"""

import re
from collections.abc import Mapping
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)

Counters = Mapping[str, int]
"""Number of kills so far, by the path of the counter's file."""


def read_counters(root: Path = Path("/")) -> Counters:
    """Read all available counters; there are none on other systems and in some containers."""
    counters = {}
    for path in (root / "proc/vmstat", *_group_files(root)):
        try:
            count = _COUNT.search(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if count:
            counters[str(path)] = int(count[1])
    return counters


def killed_by_kernel(before: Counters, after: Counters) -> bool | None:
    """Return whether a counter rose between two readings; None if there is no counter."""
    both = before.keys() & after.keys()
    if not both:
        return None
    return any(after[name] > before[name] for name in both)


def _group_files(root: Path) -> list[Path]:
    """List the paths where the counters of this process's control group may be mounted."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    mounted = root / "sys/fs/cgroup"
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, name = mounted, "memory.events"
        elif "memory" in controllers.split(","):
            folder, name = mounted / "memory", "memory.oom_control"
        else:
            continue
        # In a container, the group itself may be mounted.
        files += [folder / path.lstrip("/") / name, folder / name]
    return files
