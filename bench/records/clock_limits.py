"""What holds down a GPU's clock, as NVML reports it; it is read in several rooms."""

from contextlib import suppress
from typing import Any

_REASONS = {
    "power": ("SwPowerCap",),
    "power brake": ("HwPowerBrakeSlowdown",),
    "heat": ("SwThermalSlowdown", "HwThermalSlowdown"),
}
"""NVML's names of the reasons that matter; a low clock of an idle board does not."""

_KINDS = ("Event", "Throttle")
"""NVML's newer and older word for these reasons; an old driver knows the older one alone."""


def held_down_by(nvml: Any, handle: Any) -> list[str] | None:
    """Return what holds down a board's clock at this moment; None if the board does not say.

    Args:
      nvml: the module `pynvml` or a substitute.
      handle: the board's.
    """
    for kind in _KINDS:
        with suppress(AttributeError, nvml.NVMLError):
            reasons = getattr(nvml, f"nvmlDeviceGetCurrentClocks{kind}Reasons")(handle)
            name = f"nvmlClocks{kind}Reason"
            return [
                word
                for word, ends in _REASONS.items()
                if any(reasons & getattr(nvml, name + end, 0) for end in ends)
            ]
    return None
