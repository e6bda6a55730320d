"""Costs of saving and restoring a cell's state: seconds, bytes and bandwidth."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.records.rows import Checkpoint

_ENDS = ("s", "least_s", "most_s")


def find(blocks: Sequence[Comparison], stored: Mapping[str, Checkpoint]) -> list[dict[str, Any]]:
    """Return a row for every save and restore of the cells that have a time, or why there is none.

    Columns, NaN where there is no figure:

    - `cell`, `implementation`; `what`: `save, async` or `restore on data=2`; the `reason` why there
      are no figures, if any; `repetitions`; `file_system`.
    - Median, least and most seconds over repetitions (`_s`, `_least_s`, `_most_s`): `total` until
      all is saved or restored, `blocking`, the part of a save that blocks training, and
      `step_during`, a step during an asynchronous save; `step_before_s`, a step before it.
    - `state_bytes`, `stored_bytes` of the files; `bytes_a_second` of the state.
    - Of a restored state, the most bytes on one device (`device_bytes`), and the most that one
      device was seen to hold of one array meanwhile (`seen_bytes`), at most its largest shard.
    """
    return [
        row
        for block in blocks
        for cell in block.ranked
        if cell["cell"] in stored
        for row in _rows(cell, stored[cell["cell"]])
    ]


_FIGURES = (
    *(f"{name}_{end}" for name in ("total", "blocking", "step_during") for end in _ENDS),
    *("step_before_s", "state_bytes", "stored_bytes", "bytes_a_second"),
    *("device_bytes", "seen_bytes"),
)


def _rows(cell: Mapping[Any, Any], checkpoint: Checkpoint) -> Iterator[dict[str, Any]]:
    common = {
        "cell": cell["cell"],
        "implementation": cell["implementation"],
        "what": "",
        "reason": checkpoint["reason"],
        "repetitions": 0,
        **dict.fromkeys(_FIGURES, math.nan),
        "state_bytes": float(checkpoint["state_bytes"]),
        "stored_bytes": float(checkpoint["stored_bytes"]),
        "file_system": checkpoint["file_system"],
    }
    if checkpoint["reason"]:
        yield common
    for mode, save in checkpoint["saves"].items():
        before = [ns / 1e9 for ns in save["steps_before_ns"]]
        yield {
            **common,
            "what": f"save, {mode}",
            **_total(save["total_s"], checkpoint),
            **_spread("blocking", save["blocking_s"]),
            **_spread("step_during", [ns / 1e9 for ns in save["steps_during_ns"]]),
            "step_before_s": median(before) if before else math.nan,
        }
    for restore in checkpoint["restores"]:
        yield {
            **common,
            "what": f"restore on {restore['mesh']}",
            **_total(restore["seconds"], checkpoint),
            "device_bytes": restore["device_bytes"],
            "seen_bytes": restore["seen_bytes"],
        }


def _total(seconds: Sequence[float], checkpoint: Checkpoint) -> dict[str, float]:
    spread = _spread("total", seconds)
    rate = checkpoint["state_bytes"] / (spread["total_s"] or math.nan)
    return {**spread, "repetitions": len(seconds), "bytes_a_second": rate}


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    values = (median(seconds), min(seconds), max(seconds)) if seconds else (math.nan,) * 3
    return {f"{name}_{end}": value for end, value in zip(_ENDS, values, strict=True)}
