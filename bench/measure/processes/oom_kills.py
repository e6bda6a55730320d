"""The counters of the kernel's out-of-memory killer.

SIGKILL looks the same whoever sends it. Linux counts the kills of its out-of-memory killer: those
of the whole system in /proc/vmstat (since 4.13), and those of a control group in its memory.events
(version 2) or memory.oom_control (version 1). The counters rise before the signal is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)

Counters = Mapping[str, int]
"""Kills so far, by the file that counts them."""


def read_counters(root: Path = Path("/")) -> Counters:
    """Read the counters that exist: none on other systems, and in some containers."""
    found = {}
    for path in (root / "proc/vmstat", *_group_files(root)):
        try:
            count = _COUNT.search(path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        if count:
            found[str(path)] = int(count[1])
    return found


def killed_by_kernel(before: Counters, after: Counters) -> bool | None:
    """Whether the out-of-memory killer struck between two readings; None if no counter exists."""
    both = before.keys() & after.keys()
    if not both:
        return None
    return any(after[name] > before[name] for name in both)


def _group_files(root: Path) -> list[Path]:
    """Files of this process's control group, in the places where they may be mounted."""
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
