"""What devices used of energy during each turn, by counters that the platform shows.

Of NVIDIA's GPUs whole boards are counted, by NVML; of CPUs whole packages, by the kernel's powercap
(RAPL, of Intel and AMD). Both include idle power, and what other programs do there. Counters are
read between turns, outside of the timed spans. They move in steps, those of boards every 20 to
100 ms, and a turn may be shorter: how often they do is looked at before, and the report says how
uncertain the sums over all turns of an arm are.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import jax

from bench.records.host import host_id
from bench.records.rows import Energy, EnergyMeter
from bench.worker import process_exchange

POWERCAP = Path("/sys/class/powercap")
TOPOLOGY = Path("/sys/devices/system/cpu")

LOOK_S = 0.5
"""Most time of looking how often counters move."""

_MOVES = 4
"""So many moves of a counter show how often it does."""

_PACKAGE = re.compile(r"package-(\d+)(-die-\d+)?")
_PARTS = "MIG-"


class UnknownError(Exception):
    """There is nothing to read; the message says why."""


class Counter(Protocol):
    """Energy of one board or package."""

    name: str
    """Unique on its host; never stored."""
    kind: str
    """For people."""

    def joules(self) -> float:
        """Used since some moment.

        Raises:
          UnknownError: it cannot be read.
        """


class Package:
    """A CPU package, or a die of one."""

    kind = "CPU package"

    def __init__(self, folder: Path) -> None:
        self.name = (folder / "name").read_text().strip()
        self._path = folder / "energy_uj"
        self._wraps_at = int((folder / "max_energy_range_uj").read_text())
        self._total = 0
        self._last = self._read()

    def joules(self) -> float:
        """Since this was made. The counter starts over at its largest value, after minutes."""
        now = self._read()
        self._total += now - self._last + (self._wraps_at if now < self._last else 0)
        self._last = now
        return self._total / 1e6

    def _read(self) -> int:
        try:
            return int(self._path.read_text())
        except PermissionError as error:
            raise UnknownError(
                f"{self._path.name} of {self.name} can be read by root alone"
            ) from error
        except OSError as error:
            raise UnknownError(f"{self.name} cannot be read: {error.strerror}") from error


def packages(powercap: Path = POWERCAP, topology: Path = TOPOLOGY) -> list[Counter]:
    """The packages that this process may run on.

    Raises:
      UnknownError: none is shown, or one cannot be read.
    """
    found: dict[str, Path] = {}
    # A package that is shown in two ways counts once; as a register, where it is.
    for folder in sorted(powercap.glob("*"), key=lambda folder: ("mmio" in folder.name, folder)):
        with suppress(OSError):
            found.setdefault((folder / "name").read_text().strip(), folder)
    used = _packages_used(topology)
    chosen = [
        folder
        for name, folder in sorted(found.items())
        if (match := _PACKAGE.fullmatch(name)) and (not used or int(match[1]) in used)
    ]
    if not chosen:
        raise UnknownError("this system shows no energy of its CPU packages (powercap)")
    return [Package(folder) for folder in chosen]


def _packages_used(topology: Path) -> set[int]:
    """Packages of the cores that this process may use; empty where the system does not tell."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    used = set()
    for core in cores:
        with suppress(OSError, ValueError):
            text = (topology / f"cpu{core}/topology/physical_package_id").read_text()
            used.add(int(text))
    return used


class Board:
    """An NVIDIA GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.name = str(nvml.nvmlDeviceGetUUID(handle))
        self.kind = str(nvml.nvmlDeviceGetName(handle))
        self._nvml, self._handle = nvml, handle
        self.joules()

    def joules(self) -> float:
        """Since the driver was loaded."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3
        except self._nvml.NVMLError as error:
            raise UnknownError(f"NVML tells no energy of {self.kind}: {error}") from error


def boards(ordinals: Sequence[int], nvml: Any = None) -> list[Counter]:
    """The boards of devices.

    Args:
      ordinals: of the devices among those that CUDA shows to this process.
      nvml: the module pynvml, or what stands in for it.

    Raises:
      UnknownError: NVML is not there, or shows no energy of one of them.
    """
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ImportError as error:
            raise UnknownError(
                "NVML is read by the package nvidia-ml-py (the extra `energy`), which is not "
                "installed"
            ) from error
    try:
        nvml.nvmlInit()
        return [Board(nvml, _handle(nvml, ordinal)) for ordinal in sorted(set(ordinals))]
    except nvml.NVMLError as error:
        raise UnknownError(f"NVML: {error}") from error


def _handle(nvml: Any, ordinal: int) -> Any:
    """NVML's handle of a device of CUDA's, which has its own order and may not be shown all."""
    count = nvml.nvmlDeviceGetCount()
    every = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    shown = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    word = shown[ordinal] if shown != [""] else str(ordinal)
    if word.startswith(_PARTS):
        raise UnknownError("a part of a board (MIG) has no counter of its own")
    if not word.isdigit():
        return nvml.nvmlDeviceGetHandleByUUID(word)
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({nvml.nvmlDeviceGetName(one) for one in every}) > 1:
        raise UnknownError(
            "the GPUs are of different kinds, which CUDA orders otherwise than NVML; "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID makes them agree"
        )
    return every[int(word)]


def counters(devices: Sequence[jax.Device]) -> list[Counter]:
    """What counts the energy of this process's devices.

    Raises:
      UnknownError: nothing does.
    """
    platform = devices[0].platform
    if platform == "cpu":
        return packages()
    if platform == "gpu":
        return boards([device.local_hardware_id or 0 for device in devices])
    raise UnknownError(f"no counter of energy is known for the platform {platform}")


def period(found: Sequence[Counter], most_s: float = LOOK_S) -> float:
    """The longest time in seconds between two moves of a counter; `most_s` if one hardly moves."""
    last = [counter.joules() for counter in found]
    moved: list[list[float]] = [[] for _ in found]
    until = time.monotonic() + most_s
    while (now := time.monotonic()) < until and min(map(len, moved), default=_MOVES) < _MOVES:
        for number, counter in enumerate(found):
            value = counter.joules()
            if value != last[number]:
                last[number] = value
                moved[number].append(now)
        time.sleep(0.0002)
    gaps = [b - a for times in moved for a, b in pairwise(times)]
    return most_s if any(len(times) < _MOVES for times in moved) else max(gaps, default=0.0)


class Meter:
    """Energy between readings, of what no other process counts already.

    Processes of one host see the same packages: the first of them counts.

    Args:
      devices: of this process.
      found: counters, in place of those of the devices.
    """

    def __init__(
        self, devices: Sequence[jax.Device], found: Iterable[Counter] | None = None
    ) -> None:
        self._counters: list[Counter] = []
        reason, period_s = "", 0.0
        try:
            self._counters = list(counters(devices) if found is None else found)
            period_s = period(self._counters)
        except Exception as error:  # noqa: BLE001 - a figure beside the time, which must not cost it
            reason = why(error)
        seen = [[one.name, one.kind] for one in self._counters]
        told: list[Any] = process_exchange.gather([host_id(), seen, period_s, reason])
        owners: dict[tuple[str, str], int] = {}
        kinds: list[str] = []
        for rank, (host, others, _, _) in enumerate(told):
            for name, kind in others:
                if owners.setdefault((host, name), rank) == rank:
                    kinds.append(kind)
        rank = jax.process_index()
        self._counters = [one for one in self._counters if owners[told[rank][0], one.name] == rank]
        self.reason = next((why for *_, why in told if why), "")
        """Why the energy is unknown, of any process; empty if it is not."""
        self.told = EnergyMeter(
            counted=[] if self.reason else kinds,
            period_s=max(each[2] for each in told),
            reason=self.reason,
        )
        """What is counted, or why nothing is."""
        self._at, self._joules = time.monotonic(), 0.0
        self.slot()

    def slot(self) -> Energy | None:
        """What was used since the last call, or since this was made; None if that is unknown."""
        if self.reason:
            return None
        try:
            now, joules = time.monotonic(), sum(one.joules() for one in self._counters)
        except Exception as error:  # noqa: BLE001 - as above
            self.reason = self.told["reason"] = why(error)
            return None
        slot = Energy(joules=round(joules - self._joules, 6), seconds=round(now - self._at, 6))
        self._at, self._joules = now, joules
        return slot


def why(error: Exception) -> str:
    """What is said of a counter that cannot be read."""
    return str(error) if isinstance(error, UnknownError) else f"{type(error).__name__}: {error}"


def merged(slots: Sequence[Energy | None]) -> Energy | None:
    """The sum over processes, in the longest of their times; None where one of them is unknown."""
    known = [slot for slot in slots if slot is not None]
    if len(known) < len(slots):
        return None
    return Energy(
        joules=round(sum(slot["joules"] for slot in known), 6),
        seconds=max(slot["seconds"] for slot in known),
    )
