"""Costs of input and of checkpoints beside a step, and of the parts of the step itself.

An arm with input takes a new batch in every step, and is compared with the same implementation's
arm on a resident batch.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import columns
from bench.records.arms import INPUT_WAYS, arm_beside
from bench.records.rows import Checkpoint


def input_costs(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, for each requested way of input.

    Columns: `cell`, `implementation`, `way`, the `reason` why there are no samples, if any; step
    times on a resident batch (`resident_step_s`) and with input (`step_s`), and the `ratio` of the
    latter to the former in the same rounds, with its 95 % interval (`ratio_low`, `ratio_high`) and
    `verdict`; the columns of `input_waits`. NaN or None without samples.
    """
    cells = [(block, cell, cell["inputs"] or {}) for block in comparisons for cell in block.ranked]
    asked = ((block, cell, way) for block, cell, ways in cells for way in INPUT_WAYS if way in ways)
    return [_input_cost(*each) for each in asked]


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
        **dict.fromkeys(("wait_s", "starved_s"), math.nan),
        **block.waits.get(arm, {}),
    }


def checkpoint_costs(
    blocks: Sequence[Comparison], stored: Mapping[str, Checkpoint]
) -> list[dict[str, Any]]:
    """Return a row for every save and restore of the cells that have a time, or why there is none.

    Columns, NaN where there is no figure:

    - `cell`, `implementation`; `what`: `save, async` or `restore on data=2`, None without figures;
      the `reason` why there are none, if any; `repetitions`.
    - Median, least and most seconds over repetitions (`_s`, `_least_s`, `_most_s`): `total` until
      all is saved or restored, `blocking`, the part of a save that blocks training, and
      `step_during`, a step during an asynchronous save; `step_before_s`, a step before it.
    - `state_bytes`, `stored_bytes` of the files; `bytes_a_second` of the state.
    """
    cells = (cell for block in blocks for cell in block.ranked if cell["cell"] in stored)
    return [row for cell in cells for row in _checkpoint_rows(cell, stored[cell["cell"]])]


def _checkpoint_rows(cell: Mapping[Any, Any], checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    saves, restores = checkpoint["saves"].items(), checkpoint["restores"]
    timed: list[tuple[str | None, list[float], Mapping[str, Any]]] = [
        *((f"save, {mode}", save["total_s"], save) for mode, save in saves),
        *((f"restore on {one['mesh']}", one["seconds"], {}) for one in restores),
    ]
    for what, total, save in timed or [(None, [], {})]:
        spread = _spread("total", total)
        yield {
            "cell": cell["cell"],
            "implementation": cell["implementation"],
            "what": what,
            "reason": checkpoint["reason"],
            "repetitions": len(total),
            **spread,
            **_spread("blocking", save.get("blocking_s", ())),
            **_spread("step_during", [ns / 1e9 for ns in save.get("steps_during_ns", ())]),
            "step_before_s": median(save.get("steps_before_ns") or [math.nan]) / 1e9,
            "state_bytes": checkpoint["state_bytes"] or math.nan,
            "stored_bytes": checkpoint["stored_bytes"] or math.nan,
            "bytes_a_second": checkpoint["state_bytes"] / (spread["total_s"] or math.nan),
        }


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = (median(seconds), min(seconds), max(seconds)) if seconds else (math.nan,) * 3
    return dict(zip((f"{name}_s", f"{name}_least_s", f"{name}_most_s"), values, strict=True))


PARTS = {"local": "communication", "no-update": "update", "forward": "after_loss"}
"""The part that each of bench.records.arms.ABLATIONS lacks. `after_loss` is everything that follows
from the gradients: the backward pass, their reduction and the update."""


def find(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return a row for every implementation with a time, if ablated arms were requested.

    Columns: `cell`, `implementation`, and for each of PARTS its share of the step, which is 1 minus
    the paired ratio of the ablated step to the whole one, with its 95 % interval (`..._low`,
    `..._high`); and the `..._reason` why there is no ablated arm. NaN where there is no figure, and
    an empty reason where there is an arm.

    A share may be below 0, where the step without the part takes longer. Shares need not add up:
    communication and computation may run at the same time, and a part may slow down another.
    """
    return [_shares(b, cell) for b in comparisons for cell in b.ranked if cell["ablations"]]


def _shares(block: Comparison, cell: Mapping[str, Any]) -> dict[str, Any]:
    row = {"cell": cell["cell"], "implementation": cell["implementation"]}
    for way, part in PARTS.items():
        left = columns(part, block.ablated.get(arm_beside(cell["implementation"], way)))
        row |= {
            part: 1 - left[part],
            f"{part}_low": 1 - left[f"{part}_high"],
            f"{part}_high": 1 - left[f"{part}_low"],
            f"{part}_reason": cell["ablations"][way],
        }
    return row
