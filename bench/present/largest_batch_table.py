"""Largest batches on the terminal: a line each as they are found, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from bench.present import terminal
from bench.records import numbers
from bench.records.largest_batches import MaxBatchRow


def line(row: MaxBatchRow) -> str:
    """The row's cell and outcome."""
    return f"{row['workload']}/{row['mesh']}/{row['options']}/{row['implementation']}: {words(row)}"


def words(row: MaxBatchRow) -> str:
    """The largest batch, or why there is none."""
    if row["batch"] is None:
        return f"{row['status']}: {row['reason']}"
    less = f"; {row['refuted'][0]} was predicted and ran out of memory" if row["refuted"] else ""
    return f"{row['batch']}, which ran{less}"


def show(console: Console, rows: Sequence[MaxBatchRow]) -> None:
    """Print a table of 80 columns for each workload, its options, and limit."""
    for (subject, limit, source), own in groupby(rows, key=_subject):
        title = f"{subject}: {numbers.bytes_(limit)} per device, {source}"
        console.print(Text("\n", "bold").append(terminal.plain(title)))
        headings = "implementation", "mesh", ">largest", ">predicted", ">measured", ">too large"
        cells = (
            (
                row["implementation"],
                row["mesh"],
                str(row["batch"] or row["status"]),
                numbers.bytes_(row["predicted_bytes"]),
                numbers.bytes_(row["peak_bytes"]),
                str(row["next_batch"] or numbers.MISSING),
            )
            for row in own
        )
        console.print(terminal.table(*headings, rows=cells))


def _subject(row: MaxBatchRow) -> tuple[str, float, str]:
    return f"{row['workload']}, {row['options']}", row["limit_bytes"], row["limit_is"]
