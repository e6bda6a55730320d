"""Limits of devices, and how close a cell comes: published peaks, and measured rooflines.

A roofline (Williams, Waterman and Patterson, Communications of the ACM 52 (2009), 65) bounds a
device's FLOP/s by its matmul rate, and by its memory bandwidth times the arithmetic intensity.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import numbers
from bench.records.cells import PRECISIONS, Block
from bench.records.grouping import grouped
from bench.records.rows import BlockRow, Ceilings

LEAST = 0.5
"""XLA counts the body of a loop once. If its count is less than this share of the model's FLOPs, it
leaves out most of the step's work, and the step has no place below the roofline."""


@dataclass(frozen=True)
class Peak:
    """A vendor's published figure for one device at one precision."""

    flops: float
    """Dense FLOP/s of one device."""
    note: str
    source: str


_PEAKS = {
    (kind, precision): Peak(float(entry[precision]), entry["note"], entry["source"])
    for entry in tomllib.loads(Path(__file__).with_name("peaks.toml").read_text("utf-8"))["peak"]
    for kind in entry["device_kinds"]
    for precision in PRECISIONS
    if precision in entry
}


def peak(device_kind: str, precision: str) -> Peak | None:
    """Return the published peak of a device, or None if peaks.toml has no exact match."""
    return _PEAKS.get((device_kind, precision))


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
        f"{numbers.si(published.flops, 'FLOP/s')}: the time, the workload's FLOPs or the peak is "
        "wrong, so the time is not shown"
    )


def ceilings(blocks: Sequence[BlockRow]) -> dict[str, Ceilings]:
    """Return, by block, the best of each figure over all blocks with the same hardware.

    Such blocks have equal numbers of devices and processes, and the same precision and variant.
    Blocks without any such figures are left out.
    """
    hardware = {}
    for row in blocks:
        own = Block.of(row).options
        hardware[row["block"]] = row["devices"], own.processes, own.precision, own.variant
    measured = grouped((hardware[r["block"]], r["ceilings"]) for r in blocks if r["ceilings"])
    best = {}
    for same, every in measured.items():
        rates = [one["all_reduce_bytes"] for one in every if one["all_reduce_bytes"] is not None]
        seconds = [one["all_reduce_s"] for one in every if one["all_reduce_s"] is not None]
        best[same] = Ceilings(
            matmul_flops=max(one["matmul_flops"] for one in every),
            memory_bytes=max(one["memory_bytes"] for one in every),
            all_reduce_bytes=max(rates, default=None),
            all_reduce_s=min(seconds, default=None),
        )
    return {name: best[same] for name, same in hardware.items() if same in best}


def roofline(cell: Mapping[str, Any], machine: Ceilings | None) -> dict[str, float]:
    """Return a cell's columns of bench.analyse.cell_table.Tables.cells; NaN where unknown.

    `cell` is a row of that table, with its times; `machine` has the ceilings of its hardware.
    """
    flops, moved = cell["compiled_flops"], cell["accessed_bytes"]
    if flops < LEAST * cell["model_flops"]:
        flops = math.nan
    intensity = flops / moved if moved > 0 else math.nan
    reached = flops / cell["step_s"] / cell["devices"]
    roof = math.nan
    if machine is not None and not math.isnan(intensity):
        roof = min(machine["matmul_flops"], intensity * machine["memory_bytes"])
    return {
        "intensity": intensity,
        "device_flops": reached,
        "roof": reached / roof if roof > 0 else math.nan,
    }
