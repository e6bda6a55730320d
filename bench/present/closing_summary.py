"""The closing lines of a run on the terminal: the fastest of each block, and what failed."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Column
from rich.text import Text

from bench.analyse import cell_table, checkpoint_costs, input_cost, loss_curves
from bench.present import checkpoint_tables, input_tables, loss_sentences, run_tables, sentences
from bench.present.terminal import table
from bench.records import numbers
from bench.records.statuses import STATUSES, VERDICT_STYLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    from rich.console import Console, RenderableType

    from bench.present.sentences import Summary
    from bench.records.store import Run

MOST_BLOCKS = 40
"""Rows that are shown; of more blocks, the first ones of each subject."""

MOST_FAILURES = 12
"""Reasons that are shown."""

_LEFT = ("mesh", "fastest", "", "verdict")
"""Headings of columns that hold no numbers; the first two give way on a narrow terminal."""

_NARROW = 60
"""Width of a terminal below which intervals and verdicts are left out."""


def print_summary(console: Console, run: Run) -> None:
    """Print the table, the failures and the counts; no line is wider than the console."""
    found = cell_table.build(run)
    saved = checkpoint_costs.find(found.comparisons, found.checkpoints)
    lines = (
        sentences.decisions(found.cells),
        *input_tables.sentences(input_cost.find(found.comparisons)),
        *checkpoint_tables.sentences(saved),
        loss_sentences.sentence(loss_curves.find(found)),
    )
    for part in (
        *_blocks(list(sentences.summaries(found).values()), console.width),
        *map(Text, filter(None, lines)),
        *_failures(found.cells),
        _counts(found.cells),
    ):
        console.print(part)


def _blocks(every: Sequence[Summary], width: int) -> Iterator[RenderableType]:
    """The rows below their subjects, in columns that are aligned across subjects."""
    if not every:
        return
    subjects = [list(same) for _, same in groupby(every, key=lambda each: each.subject)]
    most = max(map(len, subjects))
    while most > 1 and sum(min(len(same), most) for same in subjects) > MOST_BLOCKS:
        most -= 1
    narrow = width < _NARROW
    shown = [[_cells(each, narrow) for each in same[:most]] for same in subjects[:MOST_BLOCKS]]
    gap = 1 if narrow else 2
    columns = [
        Column(
            heading, header_style="dim", width=size, no_wrap=True, overflow="ellipsis",
            justify="left" if heading in _LEFT else "right",
        )
        for heading, size in _widths([row for rows in shown for row in rows], width, gap).items()
    ]  # fmt: skip
    for number, rows in enumerate(shown):
        title = Text(subjects[number][0].subject, "bold")
        title.truncate(width, overflow="ellipsis")
        yield Text("\n" if number else "").append_text(title)
        texts = (list(row.values()) for row in rows)
        # A column counts its rows itself, so that every table needs columns of its own.
        yield table(*(column.copy() for column in columns), rows=texts, gap=gap, header=not number)
        if len(subjects[number]) > most:
            yield Text(f"and {len(subjects[number]) - most} more in the report", style="dim")
    if len(subjects) > len(shown):
        left = len(subjects) - len(shown)
        yield Text(f"\nand {left} more workloads or options in the report", style="dim")
    yield Text(
        "\nratio: step time over the baseline's. +N: N others cannot be told from it.", "dim"
    )


def _cells(summary: Summary, narrow: bool) -> dict[str, Text]:
    """A block's row, by heading."""
    block, first = summary.comparison, summary.first
    claim = block.claims.get(first)
    ratio = summary.ratio
    verdict: str = claim.verdict.word if claim else ""
    if first and first == block.baseline:
        verdict = "baseline"
    interval = f" ({ratio.note})" if claim and claim.ratio.low is not None and not narrow else ""
    tied = len(summary.leaders) - 1
    known = {
        "mesh": Text(str(block.block.mesh)),
        "batch": Text(str(block.block.batch)),
        "fastest": Text(first or "none", "bold"),
        "": Text(f"+{tied}" if tied > 0 else ""),
        "ms/step": Text(numbers.significant(1e3 * summary.step_s) if first else ""),
        "ratio" if narrow else "ratio (95 %)": Text(ratio.main + interval if first else ""),
    }
    return known if narrow else {**known, "verdict": Text(verdict, VERDICT_STYLES.get(verdict, ""))}


def _widths(rows: Sequence[dict[str, Text]], width: int, gap: int) -> dict[str, int]:
    """Widths of the columns by heading; names are cut where the terminal is too narrow."""
    widths = {
        heading: max(cell_len(heading), *(row[heading].cell_len for row in rows))
        for heading in rows[0]
    }
    room = width - sum(widths.values()) - gap * (len(widths) - 1)
    if room < 0:
        mesh, fastest, *_ = _LEFT
        names = max(widths[mesh] + widths[fastest] + room, 2)
        widths[mesh] = min(widths[mesh], max(names - widths[fastest], names // 2))
        widths[fastest] = names - widths[mesh]
    return widths


def _failures(cells: pd.DataFrame) -> Iterator[RenderableType]:
    """Every reason once, with the cells that failed for it."""
    endings = run_tables.endings(cells)
    failed = [row for row in endings.rows if STATUSES[row["status"]].failure] if endings else []
    for row in failed[:MOST_FAILURES]:
        first, *others = row["cells"]
        line = Text("\n").append(row["status"], STATUSES[row["status"]].style).append(f"  {first}")
        if others:
            line.append(f" and {numbers.count(len(others), 'cell')} more")
        yield line
        yield Padding(Text(row["reason"], style="dim"), (0, 0, 0, 2), expand=False)
    if len(failed) > MOST_FAILURES:
        yield Text(f"\nand {len(failed) - MOST_FAILURES} reasons more in the report", style="dim")


def _counts(cells: pd.DataFrame) -> Text:
    counts = Counter(cells["status"]) if len(cells) else Counter()
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    return Text(f"\n{numbers.count(len(cells), 'cell')}: {', '.join(parts) or 'none'}")
