"""The closing lines of a run on the terminal: the answer, and what failed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import pandas as pd
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from bench.analyse import arms_beside, cell_table, checkpoint_costs, loss_curves
from bench.present import (
    checkpoint_tables,
    input_tables,
    loss_sentences,
    next_steps,
    run_tables,
    sentences,
)
from bench.present.sentences import Summary
from bench.present.terminal import table
from bench.records import numbers
from bench.records.printable import shortened
from bench.records.statuses import STATUSES
from bench.records.store import Run

FEW_BLOCKS = 2
"""Runs with at most this many blocks get a line for each block below the answer."""

MOST_SUBJECTS = 12
"""Subjects (workloads with options) that are shown."""

MOST_FAILURES = 12
"""Reasons that are shown."""


def print_answers(console: Console, run: Run) -> None:
    """Print only the answer for each workload."""
    for part in _answers(sentences.summaries(cell_table.build(run))):
        console.print(part)


def print_summary(console: Console, run: Run) -> None:
    """Print the answers, the failures and the counts; no line is wider than the console."""
    found = cell_table.build(run)
    saved = checkpoint_costs.find(found.comparisons, found.checkpoints)
    lines = (
        *input_tables.sentences(arms_beside.input_costs(found.comparisons)),
        *checkpoint_tables.sentences(saved),
        loss_sentences.sentence(loss_curves.find(found)),
    )
    for part in (
        *_answers(sentences.summaries(found)),
        *map(Text, filter(None, lines)),
        *_failures(found.cells),
        _counts(found.cells),
    ):
        console.print(part)
    for line in next_steps.lines(found, run):
        console.print(line, soft_wrap=line.startswith(next_steps.INDENT), markup=False)


def _answers(every: Sequence[Summary]) -> Iterator[RenderableType]:
    """Yield the answer for each subject; if there are few blocks, the statements about each."""
    subjects = [list(same) for _, same in groupby(every, key=lambda each: each.subject)]
    for own in subjects[:MOST_SUBJECTS]:
        first, *others = {each.comparison.block.batch for each in own}
        yield Text(own[0].subject if others else f"{own[0].subject}, batch {first}", "bold")
        for sentence in sentences.advice(own) if len(own) > 1 else ():
            yield Padding(Text(sentence), (0, 0, 0, 2))
        if len(own) == 1 or len(every) <= FEW_BLOCKS:
            rows = [(each.among(own), each.step.main, each.text()) for each in own]
            yield Padding(table("place", "step", "sure", rows=rows, header=False), (0, 0, 0, 2))
    if len(subjects) > MOST_SUBJECTS:
        left = len(subjects) - MOST_SUBJECTS
        yield Text(f"and {left} more workloads or options in the report", "dim")


def _failures(cells: pd.DataFrame) -> Iterator[RenderableType]:
    """Yield every reason once, with the cells that failed for it."""
    endings = run_tables.endings(cells)
    failed = [row for row in endings.rows if STATUSES[row["status"]].failure] if endings else []
    for row in failed[:MOST_FAILURES]:
        first, *others = row["cells"]
        line = Text("\n").append(row["status"], STATUSES[row["status"]].style).append(f"  {first}")
        if others:
            line.append(f" and {numbers.count(len(others), 'cell')} more")
        yield line
        yield Padding(Text(shortened(row["reason"]), style="dim"), (0, 0, 0, 2), expand=False)
    if len(failed) > MOST_FAILURES:
        yield Text(f"\nand {len(failed) - MOST_FAILURES} reasons more in the report", style="dim")


def _counts(cells: pd.DataFrame) -> Text:
    counts = Counter(cells["status"]) if len(cells) else Counter()
    parts = [f"{counts[status]} {status}" for status in STATUSES if counts[status]]
    return Text(f"{numbers.count(len(cells), 'cell')}: {', '.join(parts) or 'none'}")
