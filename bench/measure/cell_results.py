"""Results of a run's cells over all their launches."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.analyse import peaks
from bench.records.rows import CellRow, SampleRow
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
    cells: Iterable[CellRow], samples: Iterable[SampleRow], device_kind: str
) -> dict[str, Result]:
    """Collect the results by cell name from the rows of all launches.

    A time beyond the device's published peak is implausible.
    """
    seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for turn in samples:
        seconds[turn["attempt"], turn["arm"]].append(turn["throughput_ns"] / turn["steps"] / 1e9)
    launches: defaultdict[str, list[CellRow]] = defaultdict(list)
    for row in cells:
        launches[row["cell"]].append(row)
    results = {}
    for cell, rows in launches.items():
        row = rows[decisive([row["status"] for row in rows])]
        status, reason, measured = row["status"], row["reason"], list[float]()
        if status == "ok":
            ok = [(row["attempt"], row["implementation"]) for row in rows if row["status"] == "ok"]
            measured = [value for attempt in ok for value in seconds[attempt]]
            figures = row["precision"], row.get("model_flops", 0.0), median(measured)
            _, reason = peaks.utilization(device_kind, *figures, row["devices"])
            if reason:
                status, measured = "implausible", []
        extra = {key: value for key, value in row.items() if key in _EXTRA and value is not None}
        results[cell] = Result(status, reason, tuple(measured), extra)
    return results
