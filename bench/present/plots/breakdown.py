"""Breakdown of traced steps, as stacked bars."""

from collections.abc import Iterator, Sequence
from functools import partial

from bench.analyse.causes import parts
from bench.analyse.comparisons import Comparison
from bench.present.charts import CHARTS, PARTS
from bench.present.plots.plot_plan import Drawing, Plan, Subject, row_of
from bench.present.plots.vega_plot import panel_sizes, spec_of


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block that was traced."""
    traced = [b for b in subject.blocks if any(c["cell"] in subject.traces for c in b.ranked)]
    if traced:
        most = max(len(block.ranked) for block in traced)
        blocks, rest = subject.some(traced, "blocks", most)
        yield Plan(len(blocks), partial(_drawing, subject, blocks, rest))


def _drawing(subject: Subject, blocks: Sequence[Comparison], rest: str) -> Drawing:
    rows = [
        row_of(block, cell, "breakdown")
        | {"what": PARTS[part][0], "number": list(PARTS).index(part), "seconds": seconds}
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
        "parts": list(shown),
        "partColours": list(shown.values()),
        "stack": "zero",
        **panel_sizes(len(blocks), 2),
    }
    return Drawing(spec_of("breakdown", values), CHARTS["breakdown"].note + rest)
