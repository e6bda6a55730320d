"""Ratios to the baseline with their intervals."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import floor_width
from bench.present.charts import CHARTS
from bench.present.columns import missing
from bench.present.plots.plot_plan import Drawing, Plan, Subject, row_of
from bench.present.plots.vega_plot import panel_sizes, spec_of
from bench.records import numbers


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block in which something has a ratio."""
    compared = [block for block in subject.blocks if len(_rows(block)) > 1]
    if compared:
        most = max(len(block.arms) for block in compared)
        blocks, rest = subject.some(compared, "blocks", most)
        yield Plan(len(blocks), partial(_drawing, subject, blocks, rest))


def _drawing(subject: Subject, blocks: Sequence[Comparison], rest: str) -> Drawing:
    rows = [row for block in blocks for row in _rows(block)]
    margin = blocks[0].margin
    values = {
        "rows": rows,
        "places": [block.place for block in blocks],
        "margin": margin,
        **panel_sizes(len(blocks), 3),
        **subject.looks(row["name"] for row in rows),
        "legend": None,
    }
    note = CHARTS["ratios"].note.format(margin=numbers.percent(margin))
    return Drawing(spec_of("ratios", values), note + rest)


def _rows(block: Comparison) -> list[dict[str, Any]]:
    """Return a row for each arm with a ratio."""
    floor = floor_width(block.floor) if block.floor else None
    return [
        row_of(block, cell, "ratios") | {"floor": floor}
        for cell in block.ranked
        if not missing(cell["ratio"])
    ]
