"""Kills by the kernel's out-of-memory killer.

A SIGKILL does not tell its sender, but Linux counts the kills of its out-of-memory killer: for the
whole system in /proc/vmstat (since 4.13), and for a control group in memory.events (version 2) or
memory.oom_control (version 1). The counters rise before the signal is sent.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from bench.records.host import shown

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)

Counters = Mapping[str, int]
"""Number of kills so far, by the path of the counter's file."""


def read_counters(root: Path = Path("/")) -> Counters:
    """Read all available counters; there are none on other systems and in some containers."""
    paths = (root / "proc/vmstat", *_group_files(root))
    found = {str(path): _COUNT.search(shown(path)) for path in paths}
    return {path: int(count[1]) for path, count in found.items() if count}


def killed_by_kernel(before: Counters, after: Counters) -> bool | None:
    """Return whether a counter rose between two readings; None if there is no counter."""
    both = before.keys() & after.keys()
    return any(after[name] > before[name] for name in both) if both else None


def _group_files(root: Path) -> list[Path]:
    """List the paths where the counters of this process's control group may be mounted."""
    files: list[Path] = []
    counters = {"": ("", "memory.events"), "memory": ("memory", "memory.oom_control")}
    for line in shown(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for mount, name in filter(None, map(counters.get, controllers.split(","))):
            folder = root / "sys/fs/cgroup" / mount
            # In a container, the group itself may be mounted.
            files += [folder / path.lstrip("/") / name, folder / name]
    return files
