"""Stored parts of a turn about its devices: their energy, and the state of GPUs."""

from typing import TypedDict


class Energy(TypedDict):
    """Energy of the devices from just before a turn until just after it."""

    joules: float
    """Energy of all boards or packages in use, each as a whole."""
    seconds: float


class BoardSlot(TypedDict):
    """The NVIDIA boards of the devices right after a turn; a figure that a board lacks is None."""

    clock_mhz: float | None
    """Lowest clock of the multiprocessors, over the boards."""
    temperature_c: float | None
    """Highest temperature."""
    power_w: float | None
    """Power of all boards, as NVML averages it."""
    throttled: str | None
    """Limits that hold down the clock of any board, such as `heat; power`; empty if none does."""
    read_ns: int
    """Time of reading this, outside the timed spans."""
