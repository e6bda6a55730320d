"""How the cells of a run ended, over all their launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.analyse import peaks
from bench.records.statuses import Status, decisive

_EXTRA = ("model_flops", "unit", "units_per_step", "interleaved", "profile")


@dataclass(frozen=True)
class Result:
    """How one cell ended."""

    status: Status
    reason: str
    step_seconds: tuple[float, ...]
    """Throughput time of one step for each sample; empty unless the status is ok."""
    extra: Mapping[str, Any]
    """Fields of the cell row that benchmark.json shows beside the samples."""


def cell_results(
    cells: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]], device_kind: str
) -> dict[str, Result]:
    """Decide how each cell ended; a time beyond the device's published peak is implausible.

    Args:
      cells: cell rows of all launches.
      samples: sample rows of all launches.
      device_kind: as in the manifest.

    Returns:
      Results by name of the cell.
    """
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in samples:
        seconds[row["attempt"], row["arm"]].append(row["throughput_ns"] / row["steps"] / 1e9)
    launches: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in cells:
        launches[row["cell"]].append(row)
    results = {}
    for cell, rows in launches.items():
        row = rows[decisive([row["status"] for row in rows])]
        status, reason, measured = row["status"], row["reason"], list[float]()
        if status == "ok":
            ok = [(row["attempt"], row["implementation"]) for row in rows if row["status"] == "ok"]
            measured = [value for attempt in ok for value in seconds[attempt]]
            figures = (
                row["precision"],
                row.get("model_flops", 0.0),
                median(measured),
                row["devices"],
            )
            _, reason = peaks.utilization(device_kind, *figures)
            if reason:
                status, measured = "implausible", []
        # Stored rows have a column for every field, and NaN (unlike itself) where one is missing.
        extra = {key: row[key] for key in _EXTRA if row.get(key) is not None}
        extra = {key: value for key, value in extra.items() if value == value}  # noqa: PLR0124
        results[cell] = Result(status, reason, tuple(measured), extra)
    return results
