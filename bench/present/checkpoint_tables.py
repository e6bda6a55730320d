"""The cost of checkpoints: a table, and sentences."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.present.cell_columns import IMPLEMENTATION
from bench.present.columns import Column, Table, formatted, missing
from bench.records import numbers
from bench.records.arms import CHECKPOINT_MODES

FACT = (
    "Orbax saves and restores the state, each process the shards of its devices. Every restored "
    "state was compared with the saved one bit by bit. Files are not forced to the disk while they "
    "are written, and are dropped from the system's cache before they are read, where it allows."
)


def _other(column: str, key: str, name: str) -> Callable[[dict[str, Any]], str]:
    """Return a formatter of another item, for rows in which the column has a value."""
    return lambda row: "" if missing(row[column]) else formatted(row[key], name)


COLUMNS = (
    IMPLEMENTATION,
    Column("what", "Operation", filter=True, long=True, detail=lambda row: row["reason"]),
    Column("total_s", "Takes", "median, range", "s", span=("total_least_s", "total_most_s")),
    Column(
        "blocking_s", "Blocks training", "median, range", "s",
        span=("blocking_least_s", "blocking_most_s"),
    ),
    Column("bytes_a_second", "Bandwidth", "of the state", "B/s"),
    Column(
        "stored_bytes", "Files", "for a state of", "bytes", lambda row: row["stored_bytes"] or None,
        detail=lambda row: formatted(row["state_bytes"] or None, "bytes"),
    ),
    Column(
        "step_during_s", "Step meanwhile", "before", "s",
        detail=_other("step_during_s", "step_before_s", "s"),
    ),
    Column(
        "device_bytes", "A device holds", "most of one array while restoring", "bytes",
        detail=_other("device_bytes", "seen_bytes", "bytes"),
    ),
    Column("file_system", "File system", filter=True),
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of saves and restores."""
    return Table(
        "Checkpoints", COLUMNS, rows, [FACT], name="checkpoints", cell=lambda row: row["cell"]
    )


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cost of checkpoints over all cells, and the number of cells without figures."""
    parts = []
    for mode in CHECKPOINT_MODES:
        saves = [row for row in rows if row["what"] == f"save, {mode}"]
        if saves:
            blocking = _between([row["blocking_s"] for row in saves])
            parts.append(f"{mode} saves block training for {blocking}")
    restores = [row["total_s"] for row in rows if row["what"].startswith("restore")]
    if restores:
        parts.append(f"restores take {_between(restores)}")
    said = [f"Checkpoints: {', '.join(parts)}."] if parts else []
    failed = [row for row in rows if row["reason"]]
    if failed:
        cells = numbers.count(len(failed), "cell")
        said.append(f"There is no checkpoint of {cells}: {failed[0]['reason']}")
    return said


def _between(seconds: Sequence[float]) -> str:
    ends = dict.fromkeys(numbers.si(end, "s") for end in (min(seconds), max(seconds)))
    return " to ".join(ends)
