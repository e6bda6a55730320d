"""The printed plots of a subject: a function for each printed kind of bench.present.charts.CHARTS.

Equal rows give equal bytes. Marks or dashes repeat every distinction made by colour.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from bench.analyse import causes
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.scaling_curves import Scaling
from bench.present import charts, run_tables
from bench.present.bounds import TWICE
from bench.present.charts import CHARTS, LOG_TICKS, PARTS, SPECS
from bench.present.columns import Table, missing
from bench.present.plots.vega_plot import LABELS, WIDTH, spec_of, time_and_share
from bench.records import numbers
from bench.records.grouping import grouped
from bench.records.statuses import STATUSES

_FIELDS_A_PANEL = 25
"""Number of heatmap fields that take as much space as a panel of another plot."""

Row = dict[str, Any]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Subject:
    """A workload at one size with one set of options: the data of its plots."""

    found: Tables
    blocks: list[Comparison]
    panels: int
    """Limit on the panels of a plot."""

    def looks(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the looks of these implementations, which depend on all others of the run."""
        return charts.looks(names, self.found.cells["implementation"].unique())


@dataclass(frozen=True)
class Plan:
    """A plot that could be drawn."""

    panels: int
    """Number of panels, the measure of drawing time."""
    spec: Callable[[], Mapping[str, Any]]
    """Returns the plot in Vega-Lite; called only if it is drawn, which many plans never are."""
    note: str
    table: Callable[[], Table | None] = lambda: None
    """Returns the figures behind it; None where the report's other tables contain them."""
    title: str = ""
    """Title, and `slug` the file name, where a subject has several plots of the kind."""
    slug: str = ""
    later: bool = False
    """Whether all other plots of the subject come first."""


def sample(items: Sequence[Item], most: float) -> list[Item]:
    """Return at most `most` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    places = np.linspace(0, len(items) - 1, max(1, math.floor(most))).round().astype(int)
    return [items[place] for place in places]


def some(items: Sequence[Item], most: int, what: str) -> tuple[list[Item], str]:
    """Return at most `most` items, evenly spaced, and a sentence if some are left out."""
    chosen = sample(items, most)
    if len(chosen) == len(items):
        return chosen, ""
    return chosen, f" The plot shows {len(chosen)} of {len(items)} {what}."


def plans(subject: Subject) -> list[tuple[str, Plan]]:
    """Return all plots of a subject with their kinds, in the order in which to draw them."""
    kinds = ratios, scaling, breakdown, heatmap, roofline
    found = [(kind.__name__, plan) for kind in kinds for plan in kind(subject)]
    return sorted(found, key=lambda offer: offer[1].later)


def ratios(subject: Subject) -> Iterator[Plan]:
    """Plot ratios to the baseline with their intervals, in a panel for each block."""
    rows = [
        _row(block, cell, "ratios", floor=block.floor_width)
        for block in subject.blocks
        for cell in block.ranked
        if not missing(cell["ratio"])
    ]
    arms = Counter(row["place"] for row in rows)
    compared = [row for row in rows if arms[row["place"]] > 1]
    margin = subject.blocks[0].margin
    wide = any(abs(math.log(row["ratio"])) > math.log(TWICE) for row in compared)
    axis = {"scale": SPECS["common"]["wide"], "ticks": LOG_TICKS} if wide else {}
    yield from _faceted(subject, "ratios", compared, 3, margin=margin, legend=None, **axis)


def breakdown(subject: Subject) -> Iterator[Plan]:
    """Plot the parts of traced steps as stacked bars, in a panel for each block."""
    traces = subject.found.traces
    rows = [
        _row(block, cell, "breakdown", what=PARTS[part][0], number=number, seconds=spent[part])
        for block in subject.blocks
        for cell in block.ranked
        if cell["cell"] in traces
        for spent in [causes.parts(traces[cell["cell"]])]
        for number, part in enumerate(PARTS)
    ]
    known = {row["what"] for row in rows if row["seconds"] > 0}
    shown = {title: colour for title, colour, _ in PARTS.values() if title in known}
    colours = list(shown.values())
    yield from _faceted(
        subject, "breakdown", rows, 2, parts=list(shown), partColours=colours, stack="zero"
    )


def roofline(subject: Subject) -> Iterator[Plan]:
    """Plot compiled steps below the measured roofs, in a panel for each number of devices."""
    rows = [
        _row(block, cell, "roofline", matmul=roofs["matmul_flops"], bandwidth=roofs["memory_bytes"])
        | {"place": numbers.count(block.block.mesh.size, "device")}
        for block in sorted(subject.blocks, key=lambda block: block.block.mesh.size)
        if (roofs := block.ceilings)
        for cell in block.ranked
        if cell["intensity"] > 0 and cell["device_flops"] > 0
    ]
    yield from _faceted(subject, "roofline", rows, 3, "meshes", labels=60, area=60)


def scaling(subject: Subject) -> Iterator[Plan]:
    """Plot each scaling curve, with quartiles: the first of each kind now, the others later."""
    seen, words = set(), CHARTS["scaling"]
    for curve in subject.found.curves:
        if curve.subject != subject.blocks[0].subject:
            continue
        notes = [
            words["note"],
            words["remarks"]["oversubscribed"] if curve.oversubscribed_from is not None else "",
        ]
        spec, note = partial(_scaling, curve, subject), " ".join(filter(None, notes))
        later, table = curve.kind in seen, partial(run_tables.scaling, curve)
        yield Plan(2, spec, note, table, curve.title, curve.slug, later)
        seen.add(curve.kind)


def heatmap(subject: Subject) -> Iterator[Plan]:
    """Plot ratios over meshes and batches, in a panel for each implementation."""
    every, words = subject.found.cells, CHARTS["heatmap"]
    cells = every[every["block"].isin([block.name for block in subject.blocks])]
    meshes = list(cells.sort_values(["devices", "mesh"], kind="stable")["mesh"].unique())
    batches = cells["batch"].nunique()
    others = cells[(cells["implementation"] != cells["baseline"]) & cells["ratio"].notna()]
    typical = others.groupby("implementation")["ratio"].median().sort_values(kind="stable")
    if len(meshes) < 2 or batches < 2 or typical.empty:  # noqa: PLR2004
        return
    most = max(1, subject.panels * _FIELDS_A_PANEL // (len(meshes) * batches))
    names, rest = some(list(typical.index), most, "implementations")
    shown = cells[cells["implementation"].isin(names)]
    rows = list(map(_field, shown.to_dict("records")))
    values = {
        "rows": rows,
        "panels": names,
        "meshes": meshes,
        "lines": sorted({row["line"] for row in rows}),
        "columns": max(1, WIDTH // (62 * len(meshes) + 70)),
        "yTitle": words["x"],
    }
    note = f"{words['note']} {words['remarks']['untimed']}{rest}"
    yield Plan(1 + len(rows) // _FIELDS_A_PANEL, partial(spec_of, "heatmap", values), note)


def _faceted(
    subject: Subject,
    kind: str,
    rows: Iterable[Row],
    beside: int,
    what: str = "blocks",
    *,
    labels: int = LABELS,
    **values: Any,
) -> Iterator[Plan]:
    """Yield one plot with a panel for each place of the rows; none if there are no rows.

    `beside` panels fit in a row, and `labels` is the space beside them in pixels.
    """
    found = grouped((row["place"], row) for row in rows)
    if not found:
        return
    places, rest = some(list(found), subject.panels, what)
    shown = [row for place in places for row in found[place]]
    looks = subject.looks(row["name"] for row in shown)
    columns = min(len(places), beside)
    width = min(320, (WIDTH - labels) // columns - 20)
    values |= {"rows": shown, "places": places, "columns": columns, "width": width, **looks}
    note = CHARTS[kind]["note"].format(margin=numbers.percent(subject.blocks[0].margin))
    yield Plan(len(places), partial(spec_of, kind, values), note + rest)


def _row(block: Comparison, cell: Mapping[str, Any], kind: str, **more: Any) -> Row:
    """Return a cell's row in a kind of chart, like `rowOf` in web/chart_groups.js."""
    return {
        "name": cell["implementation"],
        "place": block.place,
        "isBaseline": cell["implementation"] == block.baseline,
        **{key: None if missing(cell[key]) else cell[key] for key in CHARTS[kind].get("row", ())},
        **more,
    }


def _field(cell: Mapping[Any, Any]) -> Row:
    ratio, status = cell["ratio"], cell["status"]
    row = {"panel": cell["implementation"], "mesh": cell["mesh"], "line": int(cell["batch"])}
    if missing(ratio):
        return {**row, "label": "no ratio" if status == "ok" else STATUSES[status].short}
    share = math.log(ratio, charts.FARTHEST_RATIO)
    return {**row, "share": share, "label": numbers.ratio(ratio)}


def _scaling(curve: Scaling, subject: Subject) -> dict[str, Any]:
    words, start, ideal = CHARTS["scaling"], curve.oversubscribed_from, curve.ideal.tolist()
    first, last = ideal[0][0], ideal[-1][0]
    values = {
        "xTitle": words["x"],
        "height": 210,
        "labels": [],
        "shade": [] if start is None else [{"x": max(start, first / 1.2), "to": last * 1.2}],
        **subject.looks(curve.points["implementation"]),
    }
    time = {
        "title": words["panels"]["step"],
        "rows": _points(curve, "step", "_s"),
        "guides": [{"x": devices, "value": step_s} for devices, step_s in ideal],
    }
    share = {
        "title": words["panels"]["efficiency"],
        "rows": _points(curve, "efficiency", ""),
        "guides": [{"x": devices, "value": 1.0} for devices, _ in ideal],
    }
    return time_and_share("curve", values, time, share)


def _points(curve: Scaling, key: str, suffix: str) -> list[Row]:
    ends = {"value": "", "low": "_q1", "high": "_q3"}
    columns = {"name": "implementation", "x": "devices"}
    columns |= {name: f"{key}{end}{suffix}" for name, end in ends.items()}
    return [
        {name: None if missing(point[own]) else point[own] for name, own in columns.items()}
        for point in curve.points.to_dict("records")
    ]
