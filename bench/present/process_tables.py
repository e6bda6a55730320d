"""A table of the slowest process of each implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.analyse.stragglers import busiest, spread
from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.analyse.comparisons import Comparison
    from bench.records.rows import TraceRow


def table(block: Comparison, traces: Mapping[str, TraceRow]) -> Table | None:
    """The slowest process of each implementation; None where one process has the whole mesh."""
    shown = [cell for cell in block.ranked if cell["implementation"] in block.process_times]
    if not shown:
        return None
    traced = any(cell["cell"] in traces for cell in shown)
    headings = [
        Figure("Implementation"),
        Figure("Slowest process", "by rank"),
        Figure("How often", "of the spans"),
        Figure("Apart", "slowest over fastest, median"),
        *([Figure("Computes most", "by rank, over the mean")] if traced else []),
    ]
    rows = []
    for cell in shown:
        found = spread(block.process_times[cell["implementation"]])
        figures = [
            Figure(str(found.slowest)),
            Figure(numbers.percent(found.often)),
            Figure(numbers.percent(found.excess)),
        ]
        if traced:
            figures.append(_busiest(traces.get(cell["cell"]), block))
        rows.append(Row(cell["implementation"], figures))
    fact = (
        "A step's time is that of its slowest process. Processes wait for one another in "
        "collectives, so that their times are close even where their work is not: what each "
        "computes shows in traces."
    )
    return Table(f"Processes, {block.place}", headings, rows, [fact])


def _busiest(trace: TraceRow | None, block: Comparison) -> Figure:
    if trace is None:
        return Figure(numbers.MISSING)
    rank, excess = busiest(trace, block.block)
    return Figure(str(rank), f"+{numbers.percent(excess)}")
