"""Shares of a step's parts, from ablated arms: what a step without the part takes less time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bench.analyse.causes.attribution import means
from bench.records.arms import arm_beside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.analyse.comparisons import Comparison
    from bench.records.trace_rows import TraceRow

PARTS = {"local": "communication", "no-update": "update", "forward": "after_loss"}
"""The part that each of bench.records.arms.ABLATIONS lacks. `after_loss` is everything that follows
from the gradients: the backward pass, their reduction and the update."""


def find(comparisons: Sequence[Comparison], traces: Mapping[str, TraceRow]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, if ablated arms were requested.

    Columns: `cell`, `implementation`, and for each of PARTS its share of the step, which is 1 minus
    the paired ratio of the ablated step to the whole one, with its 95 % interval (`..._low`,
    `..._high`); the share in the cell's trace (`..._traced`); and the `..._reason` why there is no
    ablated arm. NaN where there is no figure, and an empty reason where there is an arm.

    A share may be below 0, where the step without the part takes longer. Shares need not add up:
    communication and computation may run at the same time, and a part may slow down another.
    """
    return [
        _row(block, cell, traces.get(cell["cell"]))
        for block in comparisons
        for cell in block.ranked
        if cell["ablations"]
    ]


def _row(block: Comparison, cell: Mapping[str, Any], trace: TraceRow | None) -> dict[str, Any]:
    row = {"cell": cell["cell"], "implementation": cell["implementation"]}
    traced = traced_shares(trace) if trace else {}
    for way, part in PARTS.items():
        ratio = block.ablated.get(arm_beside(cell["implementation"], way))
        low, high = (ratio and ratio.interval()) or (math.nan, math.nan)
        row |= {
            part: 1 - ratio.value if ratio else math.nan,
            f"{part}_low": 1 - high,
            f"{part}_high": 1 - low,
            f"{part}_traced": traced.get(part, math.nan),
            f"{part}_reason": cell["ablations"][way],
        }
    return row


def traced_shares(trace: TraceRow) -> dict[str, float]:
    """Return the shares of PARTS in a traced step.

    They are means over devices and counted steps. Communication counts where nothing is computed
    beside it, and the update is the operations of optax.
    """
    mean, ops = means(trace), trace["ops"]
    spent = {
        "communication": mean["wait"] + mean["move"],
        "update": sum(op["compute_ns"] for op in ops if op["phase"] == "update") / 1e9,
        "after_loss": sum(
            op["compute_ns"] + op["wait_ns"] + op["move_ns"]
            for op in ops
            if op["phase"] != "forward"
        )
        / 1e9,
    }
    return {part: seconds / mean["total"] for part, seconds in spent.items()}
