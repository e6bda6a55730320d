"""The host and NVIDIA's boards around each turn, read outside the timed spans.

Of the host: CPU time of other processes and guests, and frequency. Of a board: clock, heat, power,
and what limits the clock. A board is read right after the last span, before it becomes idle. What
held down its clock earlier in a turn, and no longer does, is not seen.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import jax
import numpy as np
import psutil

from bench.records import nvml
from bench.records.host import CPUS
from bench.records.row_parts import BoardState
from bench.records.rows import HostSlot

_BUSY = ("user", "nice", "system", "irq", "softirq")

BOARDS: dict[str, Any] = {
    "clock_mhz": min,
    "temperature_c": max,
    "power_w": sum,
    "throttled": lambda texts: "; ".join(sorted({*"; ".join(texts).split("; ")} - {""})),
}
"""How the figures of several boards, or of the boards of all processes, are merged."""


def merged(each: Sequence[Any], how: Any) -> Any:
    """Merge figures by a function, or dicts of figures by a dict of functions.

    A dict's figure is left out if a dict lacks it, and None if it is None in any.
    """
    if callable(how):
        return None if None in each else how(each)
    known = (name for name in how if all(name in one for one in each))
    return {name: merged([one[name] for one in each], how[name]) for name in known}


def merged_hosts(slots: Sequence[HostSlot], hosts: Sequence[str]) -> HostSlot:
    """Sum the processes' slots, with each host counted once; frequencies are averaged."""
    # The first process of each host reports for it, except for the processes' own CPU time.
    of_host = list(dict(zip(reversed(hosts), reversed(slots), strict=True)).values())
    own_s = sum(slot["own_s"] for slot in slots)
    mhz = [slot["mhz"] for slot in of_host if slot["mhz"] is not None]
    # CPU time that is foreign to one process may belong to another process of the launch.
    busy_s = sum(slot["foreign_s"] + slot["own_s"] for slot in of_host)
    return HostSlot(
        cores_s=round(sum(slot["cores_s"] for slot in of_host), 6),
        steal_s=round(sum(slot["steal_s"] for slot in of_host), 6),
        own_s=round(own_s, 6),
        foreign_s=round(busy_s - own_s, 6),
        mhz=round(fmean(mhz), 1) if mhz else None,
    )


def _reading(more_cpu_s: Callable[[], float]) -> np.ndarray:
    """Return seconds so far: wall time, and busy, stolen (if counted) and own CPU time."""
    times, own_s = psutil.cpu_times(), time.process_time() + more_cpu_s()
    busy_s = sum(getattr(times, kind, 0.0) for kind in _BUSY)
    return np.array([time.monotonic(), busy_s, getattr(times, "steal", 0.0), own_s])


class HostWatch(ExitStack):
    """Reads the system's counters, and the frequencies of the cores in `cpus`, between turns.

    `more_cpu_s` returns the CPU seconds of further processes of the launch.
    """

    def __init__(self, cpus: Path = CPUS, more_cpu_s: Callable[[], float] = float) -> None:
        super().__init__()
        self._more_cpu_s = more_cpu_s
        cores = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        # psutil.cpu_freq would read /proc/cpuinfo, which takes milliseconds on many cores.
        self._frequencies = [self.enter_context(core.open("rb", buffering=0)) for core in cores]
        self._cores = os.cpu_count() or 1
        self._last = _reading(more_cpu_s)

    def slot(self) -> HostSlot:
        """Return the activity since the last call, or since this watch was created."""
        last, self._last = self._last, _reading(self._more_cpu_s)
        wall_s, busy_s, steal_s, own_s = (self._last - last).tolist()
        khz: list[float] = []
        with suppress(OSError, ValueError):  # such as of a core that is offline by now
            for file in self._frequencies:
                file.seek(0)
                khz.append(float(file.read()))
        return HostSlot(
            cores_s=round(wall_s * self._cores, 6),
            steal_s=round(steal_s, 6),
            own_s=round(own_s, 6),
            foreign_s=round(busy_s - own_s, 6),
            mhz=round(fmean(khz) / 1e3, 1) if khz else None,
        )


class BoardWatch:
    """Reads the boards of this process's devices; without NVIDIA's boards and NVML, nothing."""

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self._boards: list[Any] = []
        if devices[0].platform == "gpu":
            for ordinal in sorted({device.local_hardware_id or 0 for device in devices}):
                # A figure beside the time must not end the run, whatever NVML raises.
                with suppress(Exception):
                    self._boards.append(nvml.board_of(ordinal))

    def slot(self) -> BoardState | None:
        """Return the boards' present state; None if there are none to read."""
        if not self._boards:
            return None
        found: BoardState = merged([nvml.state(board) for board in self._boards], BOARDS)
        return found
