"""The last words on the terminal: what was fastest in each block, and what failed. No jax."""

from __future__ import annotations

from collections import Counter

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench import store
from bench.cells import STATUSES
from bench.progress import STYLES
from bench.report import tables, words
from bench.report.tables import Comparison, Tables

FAILED = ("wrong", tables.IMPLAUSIBLE, "oom", "timeout", "crashed")


def print_summary(console: Console, run: store.Run) -> None:
    """Print the table, the failures and the counts."""
    found = tables.build(run)
    for part in (_table(found), _failures(found.cells), _counts(found.cells)):
        if part is not None:
            console.print(part)


def _table(found: Tables) -> RenderableType | None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("block", overflow="fold")
    table.add_column("fastest", style="bold", overflow="fold")
    table.add_column("ms/step", justify="right", no_wrap=True)
    table.add_column("ratio (95 %)", justify="right", no_wrap=True)
    for comparison in found.comparisons:
        ranked = comparison.ranked
        if not ranked:
            table.add_row(comparison.name, "-", "-", "-")
            continue
        # One arm alone leads nobody, but it has a time.
        leaders = words.summary(comparison).leaders or [cell["implementation"] for cell in ranked]
        seconds = {cell["implementation"]: cell["step_s"] for cell in ranked}
        first, *tied = leaders
        table.add_row(
            comparison.name,
            f"{first} +{len(tied)}" if tied else first,
            f"{1e3 * seconds[first]:.3g}",
            "is it" if first == comparison.baseline else _ratio(comparison, first),
        )
    if not table.row_count:
        return None
    note = "+N: so many others are the same or undecided. ratio: its step time over the baseline's."
    return Group(table, Text(note, style="dim"), Text(words.decisions(found.cells)))


def _ratio(comparison: Comparison, arm: str) -> str:
    """Its step time over the baseline's, with the interval where there is one."""
    claim = comparison.claims.get(arm)
    if claim is None:
        return "-"
    ratio = claim.ratio
    interval = "" if ratio.low is None else f" ({ratio.low:.2f}-{ratio.high:.2f})"
    return f"{ratio.value:.2f}{interval}"


def _failures(cells: pd.DataFrame) -> RenderableType | None:
    lines = []
    for row in cells.to_dict("records"):
        if row["status"] in FAILED:
            line = Text()
            line.append(row["status"], style=STYLES.get(row["status"], STYLES["wrong"]))
            line.append(f"  {row['cell']}\n")
            line.append("\n".join(f"  {part}" for part in row["reason"].splitlines()), style="dim")
            lines.append(line)
    return Group("", *lines) if lines else None


def _counts(cells: pd.DataFrame) -> RenderableType:
    counts = Counter(cells["status"])
    parts = [
        f"{counts[status]} {status}" for status in (*STATUSES, tables.IMPLAUSIBLE) if counts[status]
    ]
    return Text(f"\n{len(cells)} cells: {', '.join(parts) or 'none'}")
