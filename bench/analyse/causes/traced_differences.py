"""Breakdown of traced steps, and attribution of their differences from the baseline."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.analyse.causes.attribution import Attribution, attribute, means
from bench.analyse.comparisons import Comparison
from bench.records.trace_rows import TraceRow

_COMPUTING = ("matmul", "elementwise", "layout", "unknown")
"""Categories of operations that compute."""


def parts(trace: TraceRow) -> dict[str, float]:
    """Return the breakdown of a step in seconds, in the order of the report.

    The values are means over devices and counted steps: `dispatch`; `matmul`, `elementwise`,
    `layout` and `unknown` operations; `wait` and `move` in collectives; `idle`.
    """
    mean = means(trace)
    computing = {
        category: sum(op["compute_ns"] for op in trace["ops"] if op["category"] == category) / 1e9
        for category in _COMPUTING
    }
    return {
        "dispatch": mean["dispatch"],
        **computing,
        **{part: mean[part] for part in ("wait", "move", "idle")},
    }


@dataclass(frozen=True)
class Difference:
    """A cell that is faster or slower than its block's baseline, attributed by their traces."""

    cell: Mapping[Any, Any]
    baseline: str
    attribution: Attribution
    timed: float
    """Ratio of their latencies."""


def differences(block: Comparison, traces: Mapping[str, TraceRow]) -> list[Difference]:
    """List implementations that are faster or slower than the baseline, if both are traced."""
    return [
        Difference(cell, block.baseline, *pair)
        for cell in block.ranked
        if cell["verdict"] in {"faster", "slower"}
        and (pair := pair_of(cell, baseline_cell(block), traces)) is not None
    ]


def baseline_cell(block: Comparison) -> Mapping[Any, Any] | None:
    """Return the baseline's row of `ranked`, if it has a time."""
    return next((c for c in block.ranked if c["implementation"] == block.baseline), None)


def pair_of(
    cell: Mapping[Any, Any], other: Mapping[Any, Any] | None, traces: Mapping[str, TraceRow]
) -> tuple[Attribution, float] | None:
    """Attribute a cell's difference from another, and return it with the ratio of their latencies.

    None where either has no trace or no time.
    """
    if other is None or other is cell or not {cell["cell"], other["cell"]} <= traces.keys():
        return None
    timed = cell["latency_s"] / other["latency_s"]
    if not math.isfinite(timed) or timed == 1:
        return None
    return attribute(traces[cell["cell"]], traces[other["cell"]]), timed


def steps_frame(traces: Iterable[TraceRow]) -> pd.DataFrame:
    """Return one row per traced step and device, and whether the step counts."""
    return pd.DataFrame(
        {"cell": row["cell"], **step, "counted": step["step"] in row["counted"]}
        for row in traces
        for step in row["steps"]
    )


def operations_frame(traces: Iterable[TraceRow]) -> pd.DataFrame:
    """Return one row per operation of a cell."""
    return pd.DataFrame({"cell": row["cell"], **op} for row in traces for op in row["ops"])
