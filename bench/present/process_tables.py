"""A table of the slowest process of each implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.analyse.causes import attribution
from bench.analyse.stragglers import spread
from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.analyse.cell_table import Comparison
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
    each = block.devices // block.processes
    seconds = np.zeros(block.processes)
    for place, computing in attribution.stragglers(trace).items():
        seconds[place // each] += computing / each
    busiest = int(seconds.argmax())
    return Figure(str(busiest), f"+{numbers.percent(seconds[busiest] / seconds.mean() - 1)}")
