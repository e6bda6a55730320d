"""Published peak FLOP/s of devices, and a step's model FLOPs utilization."""

import functools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path

from bench.records import numbers
from bench.records.cells import PRECISIONS


@dataclass(frozen=True)
class Peak:
    """A vendor's published figure for one device at one precision."""

    flops: float
    """Dense FLOP/s of one device."""
    note: str
    source: str
    """Address of the page or paper."""


def peak(device_kind: str, precision: str) -> Peak | None:
    """Return the published peak of a device, or None if peaks.toml has no exact match."""
    return _table().get((device_kind, precision))


def utilization(
    device_kind: str, precision: str, model_flops: float, step_s: float, devices: int
) -> tuple[float, str]:
    """Return the model FLOPs utilization, and why a step time is implausible.

    The utilization is model FLOP/s over the peak FLOP/s of all devices, as defined in PaLM
    (Chowdhery et al., 2022, appendix B); NaN where there is no published peak. Over 1, the time,
    the FLOPs or the peak is wrong, and the caller must refuse the time; otherwise the reason is
    empty.
    """
    published = peak(device_kind, precision)
    if published is None:
        return math.nan, ""
    share = model_flops / (step_s * devices * published.flops)
    if math.isnan(share) or share <= 1:
        return share, ""
    return share, (
        f"the time would mean {numbers.percent(share)} of the published peak of {device_kind}, "
        f"{numbers.si(published.flops, 'FLOP/s')}; no device is that fast, so the time is not shown"
    )


@functools.cache
def _table() -> dict[tuple[str, str], Peak]:
    with Path(__file__).with_name("peaks.toml").open("rb") as file:
        entries = tomllib.load(file)["peak"]
    return {
        (kind, precision): Peak(float(entry[precision]), entry["note"], entry["source"])
        for entry in entries
        for kind in entry["device_kinds"]
        for precision in PRECISIONS
        if precision in entry
    }
