"""Arms beside an implementation's own: the cost of input, and the shares of a step's parts.

An arm with input takes a new batch in every step, and is compared with the same on a resident
batch. An ablated arm lacks a part of the step: the time that it saves is the part's share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bench.analyse.causes import means
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import columns
from bench.analyse.turn_details import Waits
from bench.records.arms import INPUT_WAYS, arm_beside
from bench.records.trace_rows import TraceRow

PARTS = {"local": "communication", "no-update": "update", "forward": "after_loss"}
"""The part that each of bench.records.arms.ABLATIONS lacks. `after_loss` is everything that follows
from the gradients: the backward pass, their reduction and the update."""


def input_costs(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, for each requested way of input.

    Columns: `cell`, `implementation`, `way`, the `reason` why there are no samples, if any; step
    times on a resident batch (`resident_step_s`) and with input (`step_s`), and the `ratio` of the
    latter to the former in the same rounds, with its 95 % interval (`ratio_low`, `ratio_high`) and
    `verdict`; the fields of `Waits`. NaN or None without samples.
    """
    return [
        _input_cost(block, cell, way)
        for block in comparisons
        for cell in block.ranked
        for way in INPUT_WAYS
        if (cell["inputs"] or {}).get(way) is not None
    ]


def _input_cost(block: Comparison, cell: Mapping[str, Any], way: str) -> dict[str, Any]:
    arm = arm_beside(cell["implementation"], way)
    claim = block.input_claims.get(arm)
    ratio = columns("ratio", claim.ratio if claim else None)
    return {
        "cell": cell["cell"],
        "implementation": cell["implementation"],
        "way": way,
        "reason": cell["inputs"][way],
        "resident_step_s": cell["step_s"],
        "step_s": cell["step_s"] * ratio["ratio"],
        **ratio,
        "verdict": claim.verdict.word if claim else None,
        **asdict(block.waits.get(arm, Waits(math.nan, math.nan, math.nan))),
    }


def ablation_shares(
    comparisons: Sequence[Comparison], traces: Mapping[str, TraceRow]
) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, if ablated arms were requested.

    Columns: `cell`, `implementation`, and for each of PARTS its share of the step, which is 1 minus
    the paired ratio of the ablated step to the whole one, with its 95 % interval (`..._low`,
    `..._high`); the share in the cell's trace (`..._traced`); and the `..._reason` why there is no
    ablated arm. NaN where there is no figure, and an empty reason where there is an arm.

    A share may be below 0, where the step without the part takes longer. Shares need not add up:
    communication and computation may run at the same time, and a part may slow down another.
    """
    return [
        _shares(block, cell, traces.get(cell["cell"]))
        for block in comparisons
        for cell in block.ranked
        if cell["ablations"]
    ]


def _shares(block: Comparison, cell: Mapping[str, Any], trace: TraceRow | None) -> dict[str, Any]:
    row = {"cell": cell["cell"], "implementation": cell["implementation"]}
    traced = traced_shares(trace) if trace else {}
    for way, part in PARTS.items():
        left = columns(part, block.ablated.get(arm_beside(cell["implementation"], way)))
        row |= {
            part: 1 - left[part],
            f"{part}_low": 1 - left[f"{part}_high"],
            f"{part}_high": 1 - left[f"{part}_low"],
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
    after = [op for op in ops if op["phase"] != "forward"]
    spent = {
        "communication": mean["wait"] + mean["move"],
        "update": sum(op["compute_ns"] for op in ops if op["phase"] == "update") / 1e9,
        "after_loss": sum(op["compute_ns"] + op["wait_ns"] + op["move_ns"] for op in after) / 1e9,
    }
    return {part: seconds / mean["total"] for part, seconds in spent.items()}
