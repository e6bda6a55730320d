"""Results of a run's cells over all their launches."""

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
    """The result of one cell."""

    status: Status
    reason: str
    step_seconds: tuple[float, ...]
    """Throughput time per step of each sample; empty unless the status is ok."""
    extra: Mapping[str, Any]
    """Other fields of the cell row that benchmark.json shows."""


def cell_results(
    cells: Iterable[Mapping[str, Any]], samples: Iterable[Mapping[str, Any]], device_kind: str
) -> dict[str, Result]:
    """Collect the results by cell name from the rows of all launches.

    A time beyond the device's published peak is implausible.
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
        # A frame's rows have every field, with NaN (which does not equal itself) for missing ones.
        extra = {key: row[key] for key in _EXTRA if row.get(key) is not None}
        extra = {key: value for key, value in extra.items() if value == value}  # noqa: PLR0124
        results[cell] = Result(status, reason, tuple(measured), extra)
    return results
