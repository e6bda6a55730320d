"""Ratios to the baseline with their intervals."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import floor_width
from bench.present import charts
from bench.present.charts import CHARTS, FARTHEST_RATIO
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import Plot, draw, panel_sizes
from bench.records import numbers

_CHART = CHARTS["ratios"]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block in which something has a ratio."""
    compared = [block for block in subject.blocks if _rows(block)[1:]]
    if compared:
        shown, rest = subject.some(compared, "blocks", max(len(block.arms) for block in compared))
        note = _CHART.note.format(margin=numbers.percent(shown[0].margin)) + rest
        yield Plan(_CHART.title, note, len(shown), lambda: _draw(subject, shown))


def _draw(subject: Subject, blocks: Sequence[Comparison]) -> Plot:
    rows = [row for block in blocks for row in _rows(block)]
    typical: dict[str, list[float]] = {}
    for row in rows:
        typical.setdefault(row["name"], []).append(row["ratio"])
    ends = [row[end] or row["ratio"] for row in rows for end in ("verdict_low", "verdict_high")]
    margin = blocks[0].margin
    places = [block.place for block in blocks]
    values = {
        "rows": rows,
        "places": places,
        "order": sorted(typical, key=lambda name: sorted(typical[name])[len(typical[name]) // 2]),
        "left": min(max(min(ends) / 1.01, 1 / FARTHEST_RATIO), 1 / (1 + 1.5 * margin)),
        "right": max(min(max(ends) * 1.01, FARTHEST_RATIO), 1 + 1.5 * margin),
        "nearer": 1 / (1 + margin),
        "farther": 1 + margin,
        "xTitle": _CHART.x,
        **panel_sizes(len(places), 3),
        **charts.looks(typical, subject.implementations),
        "legend": None,
    }
    return draw(f"ratios-{subject.slug}", "ratios", values, _CHART.title, subject.subtitle)


def _rows(block: Comparison) -> list[dict[str, Any]]:
    """Return a row for each arm with a ratio: the baseline first, then the others."""
    floor = floor_width(block.floor) if block.floor else None
    rows = []
    for cell in block.ranked:
        name, of_baseline = cell["implementation"], cell["implementation"] == block.baseline
        if math.isnan(cell["ratio"]):
            continue
        row = {
            "name": name,
            "place": block.place,
            "ratio": cell["ratio"],
            "label": numbers.ratio(cell["ratio"]),
            "isBaseline": of_baseline,
            "paired": of_baseline or bool(cell["paired"]),
            "floor": floor,
            "from": floor and math.exp(-floor),
            "to": floor and math.exp(floor),
        }
        shown = {"low": "ratio_low", "high": "ratio_high"}
        for key, column in (shown | {c: c for c in ("verdict_low", "verdict_high")}).items():
            known = not of_baseline and math.isfinite(cell.get(column, math.nan))
            row[key] = cell[column] if known else None
        rows.append(row)
    return sorted(rows, key=lambda row: not row["isBaseline"])
