"""The host's memory: kills by the kernel's out-of-memory killer, and shortages.

A SIGKILL does not tell its sender, but Linux counts the kills of its out-of-memory killer: for the
whole system in /proc/vmstat (since 4.13), and for a control group in memory.events (version 2) or
memory.oom_control (version 1). The counters rise before the signal is sent. A shortage explains
workers that only seem to hang.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import psutil

from bench.records import numbers
from bench.records.host import shown

SHORT = 0.05
"""Share of available memory below which memory is short."""
STALLED = 10.0
"""Percentage of the last minute with processes stalled on memory above which memory is short."""
PRESSURE = Path("/proc/pressure/memory")
"""Linux's pressure stall information (since 4.20)."""

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


def describe_shortage(pressure: Path = PRESSURE) -> str:
    """Describe a shortage of memory; empty if there is none."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    found = re.search(r"^some .*avg60=([\d.]+)", shown(pressure), re.MULTILINE)
    stalled = round(float(found[1])) if found else 0
    if memory.available >= SHORT * memory.total and stalled < STALLED:
        return ""
    waited = f", and processes waited for it {stalled} % of the last minute" if stalled else ""
    return (
        f"memory was short: {numbers.si(memory.available, 'B')} of "
        f"{numbers.si(memory.total, 'B')} were available, {numbers.si(swap.used, 'B')} were "
        f"swapped out{waited}"
    )
