"""Published peak FLOP/s of devices, and the share of it that a step used. Imports no jax."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from bench.records.cells import PRECISIONS


@dataclass(frozen=True)
class Peak:
    """What a vendor publishes for one device at one precision."""

    flops: float
    """Dense FLOP/s of one device."""
    note: str
    source: str
    """Address of the page or paper it is from."""


def peak(device_kind: str, precision: str) -> Peak | None:
    """Published peak of a device; None where peaks.toml has none. Never a near match."""
    return _table().get((device_kind, precision))


def mfu(model_flops: float, step_seconds: float, devices: int, published: Peak) -> float:
    """Model FLOPs utilization: model FLOP/s over peak FLOP/s of all devices.

    Defined in PaLM (Chowdhery et al., 2022, appendix B). Over 1 the time, the FLOPs or the
    peak is wrong; the caller must refuse the time.
    """
    return model_flops / (step_seconds * devices * published.flops)


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
