"""Largest batches on the terminal: one line each as they are found, and tables."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from bench.present import terminal
from bench.present.cell_columns import IMPLEMENTATION
from bench.present.columns import Column, Figure, Table
from bench.records import numbers
from bench.records.largest_batches import MaxBatchRow

COLUMNS = (
    IMPLEMENTATION,
    Column("mesh", "Mesh"),
    Column("batch", "Largest", format="count",
           value=lambda row: Figure(str(row["batch"] or row["status"]))),
    Column("predicted_bytes", "Predicted", format="bytes"),
    Column("peak_bytes", "Measured", format="bytes"),
    Column("next_batch", "Too large", format="count"),
)  # fmt: skip
"""Those of bench.present.run_tables.largest that fit on a terminal."""


def line(row: MaxBatchRow) -> str:
    """Return the row's cell and outcome."""
    return f"{row['workload']}/{row['mesh']}/{row['options']}/{row['implementation']}: {words(row)}"


def words(row: MaxBatchRow) -> str:
    """Return the largest batch, or why there is none."""
    if row["batch"] is None:
        return f"{row['status']}: {row['reason']}"
    less = f"; {row['refuted'][0]} was predicted and ran out of memory" if row["refuted"] else ""
    return f"{row['batch']}, which ran{less}"


def show(console: Console, rows: Sequence[MaxBatchRow]) -> None:
    """Print a table of 80 columns for each workload with its options and limit."""
    for (subject, limit, source), own in groupby(rows, key=_subject):
        title = f"{subject}: {numbers.bytes_(limit)} per device, {source}"
        terminal.show(console, Table(title, COLUMNS, list(own)))


def _subject(row: MaxBatchRow) -> tuple[str, float, str]:
    return f"{row['workload']}, {row['options']}", row["limit_bytes"], row["limit_is"]
