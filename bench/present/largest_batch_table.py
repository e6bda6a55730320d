"""Largest batches as text: a line each, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.records import numbers
from bench.records.largest_batches import MaxBatchRow


def line(row: MaxBatchRow) -> str:
    """What was found, in a line."""
    return f"{row['workload']}/{row['mesh']}/{row['options']}/{row['implementation']}: {words(row)}"


def words(row: MaxBatchRow) -> str:
    """The largest batch and how sure that is, or why there is none."""
    if row["batch"] is None:
        return f"{row['status']}: {row['reason']}"
    less = f"; predicted was {row['refuted'][0]}, which ran out of memory" if row["refuted"] else ""
    return f"{row['batch']}, which ran{less}"


def show(console: Console, rows: Sequence[MaxBatchRow]) -> None:
    """Tables that fit 80 columns: one for each workload with its options, and limit."""
    for (subject, limit, where), own in groupby(rows, key=_subject):
        console.print(f"\n[bold]{escape(subject)}[/]: {numbers.bytes_(limit)} a device, {where}")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("implementation", "mesh"):
            table.add_column(heading, overflow="fold")
        for heading in ("largest", "predicted", "measured", "too large"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in own:
            table.add_row(
                row["implementation"],
                row["mesh"],
                str(row["batch"] or row["status"]),
                numbers.bytes_(row["predicted_bytes"]),
                numbers.bytes_(row["peak_bytes"]),
                str(row["next_batch"] or numbers.MISSING),
            )
        console.print(table)


def _subject(row: MaxBatchRow) -> tuple[str, float, str]:
    return f"{row['workload']}, {row['options']}", row["limit_bytes"], row["limit_is"]
