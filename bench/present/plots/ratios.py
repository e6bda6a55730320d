"""Ratios to the baseline with their intervals."""

import math
from collections.abc import Iterator
from statistics import median_high
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import floor_width
from bench.present.charts import CHARTS, FARTHEST_RATIO
from bench.present.columns import missing
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import panel_sizes, spec_of
from bench.records import numbers

_ENDS = {"low": "ratio_low", "high": "ratio_high"} | {c: c for c in ("verdict_low", "verdict_high")}


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block in which something has a ratio."""
    compared = [block for block in subject.blocks if len(_rows(block)) > 1]
    if not compared:
        return
    blocks, rest = subject.some(compared, "blocks", max(len(block.arms) for block in compared))
    rows = [row for block in blocks for row in _rows(block)]
    typical: dict[str, list[float]] = {}
    for row in rows:
        typical.setdefault(row["name"], []).append(row["ratio"])
    ends = [row[end] or row["ratio"] for row in rows for end in ("verdict_low", "verdict_high")]
    margin = blocks[0].margin
    values = {
        "rows": rows,
        "places": [block.place for block in blocks],
        "order": sorted(typical, key=lambda name: median_high(typical[name])),
        "left": min(max(min(ends) / 1.01, 1 / FARTHEST_RATIO), 1 / (1 + 1.5 * margin)),
        "right": max(min(max(ends) * 1.01, FARTHEST_RATIO), 1 + 1.5 * margin),
        "nearer": 1 / (1 + margin),
        "farther": 1 + margin,
        **panel_sizes(len(blocks), 3),
        **subject.looks(typical),
        "legend": None,
    }
    note = CHARTS["ratios"].note.format(margin=numbers.percent(margin))
    yield Plan(spec_of("ratios", values), len(blocks), note + rest)


def _rows(block: Comparison) -> list[dict[str, Any]]:
    """Return a row for each arm with a ratio: the baseline first, then the others."""
    floor = floor_width(block.floor) if block.floor else None
    rows = [
        {
            "name": cell["implementation"],
            "place": block.place,
            "ratio": cell["ratio"],
            "label": numbers.ratio(cell["ratio"]),
            "isBaseline": own,
            "paired": own or bool(cell["paired"]),
            "floor": floor,
            "from": floor and math.exp(-floor),
            "to": floor and math.exp(floor),
            **{
                key: None if own or missing(cell.get(column)) else cell[column]
                for key, column in _ENDS.items()
            },
        }
        for cell in block.ranked
        if not missing(cell["ratio"])
        for own in [cell["implementation"] == block.baseline]
    ]
    return sorted(rows, key=lambda row: not row["isBaseline"])
