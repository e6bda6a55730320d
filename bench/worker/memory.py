"""Memory of one device: as the compiler plans it for a step's programs, and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from bench.rows import MemoryBytes


def largest_program(programs: Sequence[Any]) -> MemoryBytes | None:
    """Planned memory of the largest of the programs.

    A step of several programs runs them one after the other on a device, so the largest is what
    the device must hold; state that another program keeps meanwhile is not in it.

    Returns:
      None if there are no programs or the backend gives no figures.
    """
    plans = map(memory_bytes, programs)
    return max((plan for plan in plans if plan), key=lambda plan: plan["total_bytes"], default=None)


class HighWater:
    """The most that is in use on a device beside what was there before.

    Backends count from the start of the process and cannot be reset, so that a maximum is known
    only where it exceeds all that was before it: of arms of one block most often the first.

    Args:
      devices: to look at.
    """

    def __init__(self, devices: Sequence[Any]) -> None:
        self._devices = devices
        self._before = [_memory_stat(device, "bytes_in_use") for device in devices]
        self._earlier = self._peaks()

    def _peaks(self) -> list[int | None]:
        return [_memory_stat(device, "peak_bytes_in_use") for device in self._devices]

    def built(self) -> None:
        """What comes now is measured; what was there before is subtracted still."""
        self._earlier = self._peaks()

    def bytes(self) -> int | None:
        """The largest device's; None where the backend does not count, or no maximum is known."""
        found = [
            peak - before
            for before, earlier, peak in zip(
                self._before, self._earlier, self._peaks(), strict=True
            )
            if peak is not None and before is not None and earlier is not None and peak > earlier
        ]
        return max(found, default=None)


def _memory_stat(device: Any, name: str) -> int | None:
    try:
        value = (device.memory_stats() or {}).get(name)
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    return None if value is None else int(value)


def memory_bytes(program: Any) -> MemoryBytes | None:
    """One program's plan, per device; None if the backend has no figures."""
    try:
        stats = program.get_compiled_memory_stats()
    except jax.errors.JaxRuntimeError:  # unimplemented by this backend
        return None
    return MemoryBytes(
        total_bytes=stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes,
        argument_bytes=stats.argument_size_in_bytes,
        output_bytes=stats.output_size_in_bytes,
        temporary_bytes=stats.temp_size_in_bytes,
        alias_bytes=stats.alias_size_in_bytes,
    )
