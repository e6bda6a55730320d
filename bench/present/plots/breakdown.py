"""Breakdown of traced steps, as stacked bars."""

from collections.abc import Iterator

from bench.analyse.causes import parts
from bench.present.charts import CHARTS, PARTS
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import panel_sizes, spec_of


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each block that was traced."""
    traced = [b for b in subject.blocks if any(c["cell"] in subject.traces for c in b.ranked)]
    if not traced:
        return
    blocks, rest = subject.some(traced, "blocks", max(len(block.ranked) for block in traced))
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
        **panel_sizes(len(blocks), 2),
    }
    yield Plan(spec_of("breakdown", values), len(blocks), CHARTS["breakdown"].note + rest)
