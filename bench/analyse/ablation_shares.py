"""Shares of a step's parts: by ablation, and in its trace.

An ablated arm lacks a part of the step: the time that it saves is the part's share.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from bench.analyse.causes import counted
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import CONFIDENCE, columns, student
from bench.records.arms import arm_beside
from bench.records.trace_rows import TraceRow

PARTS = {"local": "communication", "no-update": "update", "forward": "after_loss"}
"""The part that each of bench.records.arms.ABLATIONS lacks. `after_loss` is everything that follows
from the gradients: the backward pass, their reduction and the update."""


def find(comparisons: Sequence[Comparison], traces: Mapping[str, TraceRow]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, if ablated arms were requested.

    Columns: `cell`, `implementation`, and for each of PARTS its share of the step, which is 1 minus
    the paired ratio of the ablated step to the whole one, with its 95 % interval (`..._low`,
    `..._high`); the share in the cell's trace (`..._traced`, with `_low` and `_high`); and the
    `..._reason` why there is no ablated arm. NaN where there is no figure, and an empty reason
    where there is an arm.

    A share may be below 0, where the step without the part takes longer. Shares need not add up:
    communication and computation may run at the same time, and a part may slow down another.
    """
    return [
        _shares(block, cell, traces.get(cell["cell"]))
        for block in comparisons
        for cell in block.ranked
        if cell["ablations"]
    ]


def _traced(part: str) -> tuple[str, str, str]:
    return f"{part}_traced", f"{part}_traced_low", f"{part}_traced_high"


def _shares(block: Comparison, cell: Mapping[str, Any], trace: TraceRow | None) -> dict[str, Any]:
    row = {"cell": cell["cell"], "implementation": cell["implementation"]}
    traced = traced_shares(trace) if trace else {}
    for way, part in PARTS.items():
        left = columns(part, block.ablated.get(arm_beside(cell["implementation"], way)))
        row |= {
            part: 1 - left[part],
            f"{part}_low": 1 - left[f"{part}_high"],
            f"{part}_high": 1 - left[f"{part}_low"],
            **dict(zip(_traced(part), traced.get(part, (math.nan,) * 3), strict=True)),
            f"{part}_reason": cell["ablations"][way],
        }
    return row


def traced_shares(trace: TraceRow) -> dict[str, tuple[float, float, float]]:
    """Return the shares of PARTS in what the devices do in a traced step, without idle time.

    Each is the mean over the counted steps, with Student's 95 % interval. Communication is the time
    in which data move and nothing is computed beside it: a step without collectives still waits for
    its slowest device, namely at its end. The update is the operations of optax, and the copies
    that they need. There are no shares in runs of versions that did not store a step's phases.
    """
    steps = pd.DataFrame(counted(trace)).groupby("step").mean()
    if "update_ns" not in steps:
        return {}
    busy = steps["total_ns"] - steps["idle_ns"] - steps["dispatch_ns"]
    spent = {
        "communication": steps["move_ns"],
        "update": steps["update_ns"],
        "after_loss": busy - steps["forward_ns"],
    }
    return {part: _mean((time / busy).to_list()) for part, time in spent.items()}


def _mean(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean with its 95 % interval, whose ends are NaN for a single value."""
    mean, freedom = fmean(values), len(values) - 1
    if not freedom:
        return mean, math.nan, math.nan
    width = student(freedom, 1 - CONFIDENCE) * stdev(values, mean) / math.sqrt(len(values))
    return mean, mean - width, mean + width
