"""The machine's measured ceilings, and each cell's place below the roofline.

A roofline (Williams, Waterman and Patterson, Communications of the ACM 52 (2009), 65) bounds a
device's FLOP/s by its matmul rate, and by its memory bandwidth times the arithmetic intensity.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from bench.records.cells import Block
from bench.records.rows import BlockRow, Ceilings

LEAST = 0.5
"""XLA counts the body of a loop once. If its count is less than this share of the model's FLOPs, it
leaves out most of the step's work, and the step has no place below the roofline."""


def ceilings(blocks: Iterable[BlockRow]) -> dict[str, Ceilings]:
    """Return, by block, the best of each figure over all blocks with the same hardware.

    Such blocks have equal numbers of devices and processes, and the same precision and variant.
    Blocks without any such figures are left out.
    """
    hardware: dict[str, tuple[Any, ...]] = {}
    measured: defaultdict[tuple[Any, ...], list[Ceilings]] = defaultdict(list)
    for row in blocks:
        options = Block.of(row).options
        same = row["devices"], options.processes, options.precision, options.variant
        hardware[row["block"]] = same
        if row["ceilings"]:
            measured[same].append(row["ceilings"])
    best: dict[tuple[Any, ...], Ceilings] = {}
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


def figures(cell: Mapping[str, Any], machine: Ceilings | None) -> dict[str, float]:
    """Return a cell's columns of bench.analyse.cell_table.Tables.cells; NaN where unknown.

    `cell` is a row of that table, with its times; `machine` has the ceilings of its hardware.
    """
    flops, moved, sent = (cell[of] for of in ("compiled_flops", "accessed_bytes", "wire_bytes"))
    if flops < LEAST * cell["model_flops"]:
        flops = math.nan
    intensity = flops / moved if moved > 0 else math.nan
    reached = flops / cell["step_s"] / cell["devices"]
    roof = rate = math.nan
    if machine is not None:
        rate = machine["all_reduce_bytes"] or math.nan
        if not math.isnan(intensity):
            roof = min(machine["matmul_flops"], intensity * machine["memory_bytes"])
    return {
        "intensity": intensity,
        "device_flops": reached,
        "roof_flops": roof,
        "roof": reached / roof if roof > 0 else math.nan,
        "communication_s": sent / rate if sent else 0.0,
    }
