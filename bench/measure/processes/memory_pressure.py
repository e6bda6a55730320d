"""The host's shortage of memory, which explains workers that only seem to hang."""

import re
from pathlib import Path

import psutil

from bench.records import numbers

SHORT = 0.05
"""Share of available memory below which memory is short."""
STALLED = 10.0
"""Percentage of the last minute with processes stalled on memory above which memory is short."""
PRESSURE = Path("/proc/pressure/memory")
"""Linux's pressure stall information (since 4.20)."""


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
