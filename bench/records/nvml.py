"""NVIDIA's boards by NVML, from the package nvidia-ml-py; a board is named by NVML's handle."""

import os
from contextlib import suppress
from importlib import import_module
from typing import Any

from bench.records.row_parts import BoardState

_PARTS = "MIG-"

# Constants of nvml.h, which never change.
SM = 1
CORE = 0
SHARED = 0
_REASONS = {"power": 0x4, "power brake": 0x80, "heat": 0x20 | 0x40}
"""The reasons for a lower clock that matter; a low clock of an idle board does not."""


class UnknownError(Exception):
    """No counter, or no board, can be read; the message says why."""


def call(name: str, *arguments: Any) -> Any:
    """Call NVML's function `nvml<name>`.

    UnknownError if the package is not installed, or this board or driver does not support the call.
    """
    try:
        library = import_module("pynvml")
    except ImportError as error:
        reason = "reading NVML needs the package nvidia-ml-py (the extra `energy`)"
        raise UnknownError(reason) from error
    try:
        return getattr(library, f"nvml{name}")(*arguments)
    except (AttributeError, library.NVMLError) as error:
        raise UnknownError(f"NVML: {error}") from error


def ask(handle: Any, what: str, *arguments: Any) -> Any:
    """Return a board's answer to `nvmlDeviceGet<what>`; None if it has none."""
    with suppress(UnknownError):
        return call(f"DeviceGet{what}", handle, *arguments)
    return None


def watts(handle: Any, what: str) -> float | None:
    """Return a power, which NVML counts in milliwatts; None if the board does not say."""
    milliwatts = ask(handle, what)
    return None if milliwatts is None else milliwatts / 1e3


def boards() -> list[Any]:
    """Start NVML and find all boards of this machine; UnknownError without NVML or a driver."""
    call("Init")
    return [call("DeviceGetHandleByIndex", number) for number in range(call("DeviceGetCount"))]


def board_of(ordinal: int) -> Any:
    """Find the board of a CUDA device; CUDA has its own order, and may hide some boards.

    UnknownError if no board can be read, or none is certainly this device.
    """
    every = boards()
    shown = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    word = shown[ordinal] if shown != [""] else str(ordinal)
    if word.startswith(_PARTS):
        raise UnknownError("a part of a board (MIG) has no counter of its own")
    if not word.isdigit():
        return call("DeviceGetHandleByUUID", word)
    by_bus = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({ask(board, "Name") for board in every}) > 1:
        raise UnknownError(
            "the GPUs are of different kinds, which CUDA and NVML number differently; set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID to make them agree"
        )
    return every[int(word)]


def state(handle: Any) -> BoardState:
    """Return a board's clock, heat and power now, and what lowers its clock."""
    reasons = ask(handle, "CurrentClocksEventReasons")
    if reasons is None:  # NVML's older name
        reasons = ask(handle, "CurrentClocksThrottleReasons")
    throttled = None
    if reasons is not None:
        throttled = "; ".join(word for word, bits in _REASONS.items() if reasons & bits)
    return BoardState(
        clock_mhz=ask(handle, "ClockInfo", SM),
        temperature_c=ask(handle, "Temperature", CORE),
        power_w=watts(handle, "PowerUsage"),
        throttled=throttled,
    )
