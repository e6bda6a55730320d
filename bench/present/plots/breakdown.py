"""Breakdown of traced steps, as stacked bars."""

from collections.abc import Iterator

from bench.analyse.causes import parts
from bench.analyse.comparisons import Comparison
from bench.present.charts import CHARTS, PARTS
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import Plot, draw, panel_sizes

_CHART = CHARTS["breakdown"]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block that was traced."""
    cells = {cell["cell"] for block in subject.blocks for cell in block.ranked}
    if cells & subject.traces.keys():
        traced = [b for b in subject.blocks if any(c["cell"] in subject.traces for c in b.ranked)]
        most = max(len(block.ranked) for block in traced)
        shown, rest = subject.some(traced, "blocks", most)
        yield Plan(_CHART.title, _CHART.note + rest, len(shown), lambda: _draw(subject, shown))


def _draw(subject: Subject, blocks: list[Comparison]) -> Plot:
    rows = [
        {
            "name": cell["implementation"],
            "place": block.place,
            "what": PARTS[part][0],
            "number": list(PARTS).index(part),
            "seconds": seconds,
        }
        for block in blocks
        for cell in block.ranked
        if cell["cell"] in subject.traces
        for part, seconds in parts(subject.traces[cell["cell"]]).items()
    ]
    known = {row["what"] for row in rows if row["seconds"] > 0}
    shown = {title: colour for title, colour in PARTS.values() if title in known}
    values = {
        "rows": rows,
        "places": [block.place for block in blocks],
        "order": list(dict.fromkeys(row["name"] for row in rows)),
        "parts": list(shown),
        "partColours": list(shown.values()),
        "stack": "zero",
        "xTitle": _CHART.x,
        **panel_sizes(len(blocks), 2),
    }
    return draw(f"breakdown-{subject.slug}", "breakdown", values, _CHART.title, subject.subtitle)
