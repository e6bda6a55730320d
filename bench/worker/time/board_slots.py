"""NVIDIA's boards at the end of each turn, outside the timed spans: clock, heat, power, limits.

A board is read right after the last span, before it becomes idle. What held down its clock earlier
in a turn, and no longer does, is not seen.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import jax

from bench.records.clock_limits import held_down_by
from bench.records.device_rows import BoardSlot
from bench.worker.time.energy_counters import UnknownError, handle_of


class BoardWatch:
    """Reads the boards of this process's devices; without NVIDIA's boards and NVML, nothing.

    Args:
      devices: of this process.
      nvml: the module `pynvml` or a substitute; imported if not given.
    """

    def __init__(self, devices: Sequence[jax.Device], nvml: Any = None) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        if devices[0].platform != "gpu":
            return
        # A figure beside the time must not end the run, whatever NVML or its absence raises.
        with suppress(Exception):
            self._nvml = nvml or import_module("pynvml")
            self._nvml.nvmlInit()
            for ordinal in sorted({device.local_hardware_id or 0 for device in devices}):
                with suppress(UnknownError):
                    self._handles.append(handle_of(self._nvml, ordinal))

    def slot(self) -> BoardSlot | None:
        """Return the boards' present state; None if there are none to read."""
        if not self._handles:
            return None
        began = time.perf_counter_ns()
        nvml = self._nvml
        limits = [held_down_by(nvml, handle) for handle in self._handles]
        clocks = self._ask("ClockInfo", nvml.NVML_CLOCK_SM)
        heat = self._ask("Temperature", nvml.NVML_TEMPERATURE_GPU)
        milliwatts = self._ask("PowerUsage")
        return BoardSlot(
            clock_mhz=_of(min, clocks),
            temperature_c=_of(max, heat),
            power_w=None if (total := _of(sum, milliwatts)) is None else total / 1e3,
            throttled=None if None in limits else _joined(limits),
            read_ns=time.perf_counter_ns() - began,
        )

    def _ask(self, what: str, *arguments: Any) -> list[float | None]:
        found: list[float | None] = []
        for handle in self._handles:
            value = None
            with suppress(AttributeError, self._nvml.NVMLError):
                value = getattr(self._nvml, f"nvmlDeviceGet{what}")(handle, *arguments)
            found.append(value)
        return found


def merged(slots: Sequence[BoardSlot | None]) -> BoardSlot | None:
    """Merge the boards of all processes; None if those of one are unknown."""
    known = [slot for slot in slots if slot is not None]
    if len(known) < len(slots):
        return None
    limits = [None if (text := slot["throttled"]) is None else text.split("; ") for slot in known]
    return BoardSlot(
        clock_mhz=_of(min, [slot["clock_mhz"] for slot in known]),
        temperature_c=_of(max, [slot["temperature_c"] for slot in known]),
        power_w=_of(sum, [slot["power_w"] for slot in known]),
        throttled=None if None in limits else _joined(limits),
        read_ns=max(slot["read_ns"] for slot in known),
    )


def _of(combined: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return combined(known) if len(known) == len(values) else None


def _joined(limits: Sequence[Sequence[str] | None]) -> str:
    return "; ".join(sorted({word for words in limits for word in words or () if word}))
