"""The host's activity during a turn: CPU time of other processes and guests, and frequency."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple, Self

from bench.records.rows import HostSlot

STAT = Path("/proc/stat")
FREQUENCIES = "/sys/devices/system/cpu"

_BUSY = (0, 1, 2, 5, 6)
"""user, nice, system, irq and softirq of /proc/stat's first line; see proc_stat(5)."""
_STEAL = 7


def merged(slots: Sequence[HostSlot | None], hosts: Sequence[str]) -> HostSlot | None:
    """Sum what happened on all hosts during a turn, each host counted once.

    Args:
      slots: of each process.
      hosts: the host of each process.

    Returns:
      Sums over the hosts, and the mean frequency; None where one of them shows nothing.
    """
    known = [slot for slot in slots if slot is not None]
    if len(known) < len(slots):
        return None
    # The first process of each host speaks for it, but for the CPU time of the processes.
    of_host = list(dict(zip(reversed(hosts), reversed(known), strict=True)).values())
    own_s = sum(slot["own_s"] for slot in known)
    mhz = [slot["mhz"] for slot in of_host if slot["mhz"] is not None]
    # CPU time that is foreign to one process may be that of another process that measures.
    busy_s = sum(slot["foreign_s"] + slot["own_s"] for slot in of_host)
    return HostSlot(
        cores_s=round(sum(slot["cores_s"] for slot in of_host), 6),
        steal_s=round(sum(slot["steal_s"] for slot in of_host), 6),
        own_s=round(own_s, 6),
        foreign_s=round(busy_s - own_s, 6),
        mhz=round(sum(mhz) / len(mhz), 1) if mhz else None,
    )


class Reading(NamedTuple):
    """Totals since the system started, and this process's own CPU time."""

    wall_s: float
    busy_s: float
    steal_s: float
    own_s: float


class HostWatch:
    """Reads the kernel's counters between turns, outside of the timed spans.

    Where the system has no /proc/stat, every slot is None.
    """

    def __init__(self, stat: Path = STAT, frequencies: str = FREQUENCIES) -> None:
        self._files = ExitStack()
        self._stat: IO[bytes] | None = None
        if stat.exists():
            self._stat = self._files.enter_context(stat.open("rb", buffering=0))
        cores = sorted(Path(frequencies).glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._frequencies = [
            self._files.enter_context(core.open("rb", buffering=0)) for core in cores
        ]
        self._cores = os.cpu_count() or 1
        self._tick = 1 / os.sysconf("SC_CLK_TCK")
        self._last = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def slot(self) -> HostSlot | None:
        """Return the activity since the last call, or since this watch was created."""
        now, last = self._read(), self._last
        self._last = now
        if now is None or last is None:
            return None
        return HostSlot(
            cores_s=round((now.wall_s - last.wall_s) * self._cores, 6),
            steal_s=round(now.steal_s - last.steal_s, 6),
            own_s=round(now.own_s - last.own_s, 6),
            foreign_s=round((now.busy_s - last.busy_s) - (now.own_s - last.own_s), 6),
            mhz=self._mhz(),
        )

    def _read(self) -> Reading | None:
        if self._stat is None:
            return None
        self._stat.seek(0)
        # The first line is the sum over all cores: `cpu  42085 0 4013 96037 458 0 82 457 0 0`.
        ticks = [int(word) for word in self._stat.read(4096).split(b"\n", 1)[0].split()[1:]]
        return Reading(
            wall_s=time.monotonic(),
            busy_s=sum(ticks[index] for index in _BUSY) * self._tick,
            steal_s=(ticks[_STEAL] if len(ticks) > _STEAL else 0) * self._tick,
            own_s=time.process_time(),
        )

    def _mhz(self) -> float | None:
        if not self._frequencies:
            return None
        total = 0.0
        for file in self._frequencies:
            file.seek(0)
            total += float(file.read())
        return round(total / len(self._frequencies) / 1e3, 1)
