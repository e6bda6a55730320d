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


def describe_shortage(pressure: Path = PRESSURE) -> str:
    """Describe a shortage of memory; empty if there is none."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    stalled = _stalled(pressure)
    if memory.available >= SHORT * memory.total and stalled < STALLED:
        return ""
    waited = f", and processes waited for it {stalled:.0f} % of the last minute" if stalled else ""
    return (
        f"memory was short: {numbers.si(memory.available, 'B')} of "
        f"{numbers.si(memory.total, 'B')} were available, {numbers.si(swap.used, 'B')} were "
        f"swapped out{waited}"
    )


def _stalled(pressure: Path) -> float:
    try:
        found = re.search(r"^some .*avg60=([\d.]+)", pressure.read_text("ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return 0.0
    return float(found[1]) if found else 0.0
