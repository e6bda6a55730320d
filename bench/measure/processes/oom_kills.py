"""Processes that run out of memory: kills by the kernel's out-of-memory killer, and messages.

A SIGKILL does not tell its sender, but since version 4.13 Linux counts the kills of its
out-of-memory killer in /proc/vmstat, also those in control groups. The counter rises before the
signal is sent.
"""

import re
from pathlib import Path

from bench.records.host import shown

VMSTAT = Path("/proc/vmstat")
OUT_OF_MEMORY = re.compile(r"(?i)RESOURCE_EXHAUSTED|out of memory|std::bad_alloc|MemoryError")
"""What a process prints last that ends for lack of memory without being killed."""


def count_kills() -> int | None:
    """Count the kills so far; None on other systems and in some containers."""
    found = re.search(r"^oom_kill (\d+)$", shown(VMSTAT), re.MULTILINE)
    return int(found[1]) if found else None


def killed_by_kernel(before: int | None) -> bool | None:
    """Return whether the kernel has killed a process since a count; None if it is unknown."""
    now = count_kills()
    return None if before is None or now is None else now > before
