"""The last words on the terminal: what was fastest in each block, and what failed. No jax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.analyse import cell_table, checkpoint_costs, input_cost, loss_curves
from bench.analyse.comparisons import Comparison
from bench.present import checkpoint_tables, input_tables, loss_sentences, sentences
from bench.records import numbers, store
from bench.records.statuses import FAILURES, STATUSES, VERDICT_STYLES

MOST_BLOCKS = 40
"""Rows that are shown; of more blocks, each subject's first."""

MOST_FAILURES = 12
"""Reasons that are shown."""

_NAMES = ("mesh", "fastest")
"""Headings of the columns that give way where the terminal is too narrow."""

_WORDS = (*_NAMES, "", "verdict")
"""Headings of columns that are no numbers."""

_NARROW = 60
"""Columns of a terminal below which the intervals and verdicts are left out."""

_PLAIN = 0.1
"""Ratios from here on are shown with two decimals, smaller ones with two digits."""


@dataclass(frozen=True)
class _Row:
    """What is said of a block."""

    subject: str
    """The workload with its size, and the step's options."""
    mesh: str
    batch: str
    fastest: str
    tied: str
    """`+2`; empty if nothing else is as fast."""
    ms: str
    ratio: str
    interval: str
    verdict: str

    def figures(self, narrow: bool) -> dict[str, str]:
        """What stands in each column, by its heading."""
        found = {
            "mesh": self.mesh,
            "batch": self.batch,
            "fastest": self.fastest,
            "": self.tied,
            "ms/step": self.ms,
        }
        if narrow:
            return {**found, "ratio": self.ratio}
        ratio = f"{self.ratio} ({self.interval})" if self.interval else self.ratio
        return {**found, "ratio (95 %)": ratio, "verdict": self.verdict}


def print_summary(console: Console, run: store.Run) -> None:
    """Print the table, the failures and the counts; no line is wider than the console."""
    found = cell_table.build(run)
    saved = checkpoint_costs.find(found.comparisons, found.checkpoints)
    for part in (
        *_blocks([_row(comparison) for comparison in found.comparisons], console.width),
        *_decisions(found.cells),
        *map(Text, input_tables.sentences(input_cost.find(found.comparisons))),
        *map(Text, checkpoint_tables.sentences(saved)),
        *_losses(found),
        *_failures(found.cells),
        *_counts(found.cells),
    ):
        console.print(part)


def _row(comparison: Comparison) -> _Row:
    mesh, batch = str(comparison.block.mesh), str(comparison.block.batch)
    ranked = comparison.ranked
    if not ranked:
        return _Row(comparison.subject, mesh, batch, "none", "", "", "", "", "")
    # One arm alone leads nobody, but it has a time.
    leaders = sentences.summary(comparison).leaders or [cell["implementation"] for cell in ranked]
    seconds = {cell["implementation"]: cell["step_s"] for cell in ranked}
    first, *tied = leaders
    claim = comparison.claims.get(first)
    ratio, interval, verdict = "", "", ""
    if first == comparison.baseline:
        ratio, verdict = "1", "baseline"
    elif claim is not None:
        ratio, verdict = _ratio(claim.ratio.value), claim.verdict.word
        if claim.ratio.low is not None and claim.ratio.high is not None:
            interval = f"{_ratio(claim.ratio.low)}-{_ratio(claim.ratio.high)}"
    others = f"+{len(tied)}" if tied else ""
    ms = numbers.significant(1e3 * seconds[first])
    return _Row(comparison.subject, mesh, batch, first, others, ms, ratio, interval, verdict)


def _ratio(value: float) -> str:
    if not _PLAIN <= value < 10:  # noqa: PLR2004
        return numbers.significant(value, 3)
    return f"{value:.3f}"


def _blocks(rows: Sequence[_Row], width: int) -> Iterator[RenderableType]:
    """The rows below their subjects, in columns that stand below one another."""
    if not rows:
        return
    subjects = [list(same) for _, same in groupby(rows, key=lambda row: row.subject)]
    most = _most(list(map(len, subjects)))
    shown = [same[:most] for same in subjects[:MOST_BLOCKS]]
    narrow = width < _NARROW
    gap = 1 if narrow else 2
    widths = _widths([row.figures(narrow) for same in shown for row in same], width, gap)
    for number, same in enumerate(shown):
        title = Text(same[0].subject, "bold")
        title.truncate(width, overflow="ellipsis")
        yield Text("\n" if number else "").append_text(title)
        table = Table(
            box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=not number,
            header_style="dim",
        )  # fmt: skip
        for heading, columns in widths.items():
            table.add_column(
                heading,
                width=columns,
                justify="left" if heading in _WORDS else "right",
                no_wrap=True,
                overflow="ellipsis",
            )
        for row in same:
            figures = row.figures(narrow)
            texts = {heading: Text(text) for heading, text in figures.items()}
            texts["fastest"].stylize("bold")
            if "verdict" in texts:
                texts["verdict"].stylize(VERDICT_STYLES.get(row.verdict, ""))
            table.add_row(*texts.values())
        yield table
        if len(subjects[number]) > most:
            yield Text(f"and {len(subjects[number]) - most} more in the report", style="dim")
    if len(subjects) > len(shown):
        left = len(subjects) - len(shown)
        yield Text(f"\nand {left} more workloads or options in the report", style="dim")
    yield Text(
        "\nratio: step time over the baseline's. +N: N others cannot be told from it.", "dim"
    )


def _most(counts: Sequence[int]) -> int:
    """How many rows of each subject are shown, so that there are no more than MOST_BLOCKS."""
    most = max(counts)
    while most > 1 and sum(min(count, most) for count in counts) > MOST_BLOCKS:
        most -= 1
    return most


def _widths(rows: Sequence[dict[str, str]], width: int, gap: int) -> dict[str, int]:
    """Columns of a terminal for each heading: names are cut short where there are too few."""
    widths = {
        heading: max(map(cell_len, (heading, *(row[heading] for row in rows))))
        for heading in rows[0]
    }
    room = width - sum(widths.values()) - gap * (len(widths) - 1)
    if room < 0:
        mesh, fastest = _NAMES
        names = max(widths[mesh] + widths[fastest] + room, 2)
        widths[mesh] = min(widths[mesh], max(names - widths[fastest], names // 2))
        widths[fastest] = names - widths[mesh]
    return widths


def _decisions(cells: pd.DataFrame) -> Iterator[RenderableType]:
    text = sentences.decisions(cells)
    if text:
        yield Text(text)


def _losses(found: cell_table.Tables) -> Iterator[RenderableType]:
    text = loss_sentences.sentence(loss_curves.find(found))
    if text:
        yield Text(text)


def _failures(cells: pd.DataFrame) -> Iterator[RenderableType]:
    """Every reason once, with the cells that it is of."""
    if cells.empty:
        return
    failed = cells[cells["status"].isin(FAILURES)]
    groups = list(failed.groupby(["status", "reason"], sort=False))
    for (status, reason), rows in groups[:MOST_FAILURES]:
        first, *others = rows["cell"]
        line = Text("\n").append(str(status), STATUSES[str(status)].style)
        line.append(f"  {first}")
        if others:
            line.append(f" and {numbers.count(len(others), 'cell')} more")
        yield line
        yield Padding(Text(str(reason), style="dim"), (0, 0, 0, 2), expand=False)
    if len(groups) > MOST_FAILURES:
        yield Text(f"\nand {len(groups) - MOST_FAILURES} reasons more in the report", style="dim")


def _counts(cells: pd.DataFrame) -> Iterator[RenderableType]:
    counts = Counter(cells["status"]) if len(cells) else Counter()
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    yield Text(f"\n{numbers.count(len(cells), 'cell')}: {', '.join(parts) or 'none'}")
