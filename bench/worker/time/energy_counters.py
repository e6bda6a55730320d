"""Energy that devices use during each turn, read from the platform's counters.

NVML counts whole boards of NVIDIA's GPUs; the kernel's powercap interface (RAPL, of Intel and AMD)
counts whole CPU packages. Both include idle power and the energy of other programs. Counters are
read between turns, outside the timed spans. They update at intervals, boards every 20 to 100 ms,
which may be longer than a turn: `period` measures the interval, so that the report can state the
uncertainty of the sum over an arm's turns.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from bench.records import nvml
from bench.records.host import CPUS, cores, host_id, shown
from bench.records.nvml import UnknownError
from bench.records.row_parts import Energy
from bench.records.rows import EnergyMeter
from bench.worker import process_exchange
from bench.worker.prove.failures import name_and_text

POWERCAP = Path("/sys/class/powercap")

LOOK_S = 0.5
"""Time limit of measuring the counters' update interval."""

_MOVES = 4
"""Number of updates of a counter from which its interval is measured."""

_PACKAGE = re.compile(r"package-(\d+)(-die-\d+)?")


@dataclass
class Counter:
    """An energy counter of one board or package."""

    name: str
    """Identifier, unique on its host; never stored."""
    kind: str
    """Kind of board or package, shown in reports."""
    joules: Callable[[], float]
    """Returns the energy used since some fixed moment."""


def package(folder: Path) -> Counter:
    """Return the counter of a CPU package, or of a die of one, from its folder in powercap."""
    name, path = (folder / "name").read_text().strip(), folder / "energy_uj"
    wraps_at = int((folder / "max_energy_range_uj").read_text())

    def read() -> int:
        try:
            return int(path.read_text())
        except PermissionError as error:
            raise UnknownError(f"only root may read {path.name} of {name}") from error

    last, total = read(), 0

    def joules() -> float:
        """Return the energy since creation. The counter wraps at its largest value, in minutes."""
        nonlocal last, total
        now = read()
        total += (now - last) % wraps_at
        last = now
        return total / 1e6

    return Counter(name, "CPU package", joules)


def packages(powercap: Path = POWERCAP, topology: Path = CPUS) -> list[Counter]:
    """Find the counters of the packages that this process may run on; UnknownError without any."""
    folders: dict[str, Path] = {}
    # A package may appear twice, by registers and by memory-mapped I/O, but counts once.
    for folder in sorted(powercap.glob("*"), key=lambda folder: ("mmio" in folder.name, folder)):
        folders.setdefault(shown(folder / "name").strip(), folder)
    ids = (shown(topology / f"cpu{core}/topology/physical_package_id") for core in cores())
    used = {text.strip() for text in ids if text}
    chosen = [
        folder
        for name, folder in sorted(folders.items())
        if (match := _PACKAGE.fullmatch(name)) and (not used or match[1] in used)
    ]
    if not chosen:
        raise UnknownError("this system shows no energy of its CPU packages (powercap)")
    return [package(folder) for folder in chosen]


def board(ordinal: int) -> Counter:
    """Return the counter of a board, by its device's ordinal among those visible to CUDA."""
    handle = nvml.board_of(ordinal)

    def joules() -> float:
        """Return the energy since the driver was loaded, which NVML counts in millijoules."""
        return float(nvml.call("DeviceGetTotalEnergyConsumption", handle)) / 1e3

    joules()
    return Counter(nvml.ask(handle, "UUID"), nvml.ask(handle, "Name"), joules)


def counters(devices: Sequence[jax.Device]) -> list[Counter]:
    """Find the counters of this process's devices; UnknownError without any."""
    platform = devices[0].platform
    if platform == "cpu":
        return packages()
    if platform == "gpu":
        return [board(n) for n in sorted({device.local_hardware_id or 0 for device in devices})]
    raise UnknownError(f"no counter of energy is known for the platform {platform}")


def period(counters: Sequence[Counter]) -> float:
    """Measure the longest update interval in seconds; LOOK_S if a counter hardly moves."""
    last = [counter.joules() for counter in counters]
    moved: list[list[float]] = [[] for _ in counters]
    until = time.monotonic() + LOOK_S
    while (now := time.monotonic()) < until and min(map(len, moved), default=_MOVES) < _MOVES:
        for number, counter in enumerate(counters):
            value = counter.joules()
            if value != last[number]:
                last[number] = value
                moved[number].append(now)
        time.sleep(0.0002)
    gaps = [b - a for times in moved for a, b in pairwise(times)]
    return LOOK_S if any(len(times) < _MOVES for times in moved) else max(gaps, default=0.0)


class Meter:
    """Measures energy between readings; each board or package is counted by one process.

    Processes of one host see the same packages, which the first of them counts.
    """

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self._counters: list[Counter] = []
        reason, period_s = "", 0.0
        try:
            self._counters = counters(devices)
            period_s = period(self._counters)
        except Exception as error:  # noqa: BLE001 - a figure beside the time, which must not cost it
            reason = _reason(error)
        seen = [[counter.name, counter.kind] for counter in self._counters]
        everyones: list[Any] = process_exchange.gather([host_id(), seen, period_s, reason])
        hosts, names, periods, reasons = zip(*everyones, strict=True)
        counted: dict[tuple[Any, str], tuple[int, str]] = {}
        for rank, host in enumerate(hosts):
            for name, kind in names[rank]:
                counted.setdefault((host, name), (rank, kind))
        rank = jax.process_index()
        self._counters = [c for c in self._counters if counted[hosts[rank], c.name][0] == rank]
        reason = next(filter(None, reasons), "")
        self.description = EnergyMeter(
            counted=[] if reason else [kind for _, kind in counted.values()],
            period_s=max(periods),
            reason=reason,
        )
        """The counted kinds, or the reason why some process can count nothing."""
        self._at, self._joules = time.monotonic(), 0.0
        self.slot()

    def slot(self) -> Energy | None:
        """Return the energy since the last call, or since creation; None if it is unknown."""
        if self.description["reason"]:
            return None
        try:
            now, joules = time.monotonic(), sum(counter.joules() for counter in self._counters)
        except Exception as error:  # noqa: BLE001 - as above
            self.description["reason"] = _reason(error)
            return None
        slot = Energy(joules=round(joules - self._joules, 6), seconds=round(now - self._at, 6))
        self._at, self._joules = now, joules
        return slot


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UnknownError) else name_and_text(error)
