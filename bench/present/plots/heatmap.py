"""Ratios to the baseline over meshes and batches."""

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from bench.present.charts import CHARTS, FARTHEST_RATIO
from bench.present.plots.plot_plan import Plan, Subject, some
from bench.present.plots.vega_plot import WIDTH, Plot, blend, draw
from bench.records import numbers
from bench.records.statuses import STATUSES

SIDE = 6
"""Limit on the batches, and on the meshes, of a heatmap."""

_CHART = CHARTS["heatmap"]

_FIELDS_A_PANEL = 25
"""Fields that take as much space as a panel of another plot."""


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot of all implementations, if there are several meshes and several batches."""
    cells = subject.cells
    all_meshes = list(cells.sort_values(["devices", "mesh"], kind="stable")["mesh"].unique())
    all_batches = sorted(cells["batch"].unique())
    others = cells[(cells["implementation"] != cells["baseline"]) & cells["ratio"].notna()]
    typical = others.groupby("implementation")["ratio"].median().sort_values(kind="stable")
    if len(all_meshes) < 2 or len(all_batches) < 2 or typical.empty:  # noqa: PLR2004
        return
    batches, no_batches = some(all_batches, SIDE, "batches")
    meshes, no_meshes = some(all_meshes, SIDE, "meshes")
    fields = cells[cells["mesh"].isin(meshes) & cells["batch"].isin(batches)]
    most = max(1, subject.panels * _FIELDS_A_PANEL // (len(meshes) * len(batches)))
    names, no_names = some(list(typical.index), most, "implementations")
    fields = fields[fields["implementation"].isin(names)]
    yield Plan(
        _CHART.title,
        f"{_CHART.note} {_CHART.remarks['untimed']}{no_batches}{no_meshes}{no_names}",
        1 + len(fields) // _FIELDS_A_PANEL,
        lambda: _draw(subject, fields, names, meshes),
    )


def _draw(
    subject: Subject, cells: pd.DataFrame, names: Sequence[str], meshes: Sequence[str]
) -> Plot:
    rows = []
    for cell in cells.to_dict("records"):
        timed = not math.isnan(cell["ratio"])
        other = "no ratio" if cell["status"] == "ok" else STATUSES[cell["status"]].short
        rows.append({
            "panel": cell["implementation"],
            "mesh": cell["mesh"],
            "line": int(cell["batch"]),
            "colour": colour(cell["ratio"]) if timed else "var(--paper)",
            "label": numbers.ratio(cell["ratio"]) if timed else other,
        })  # fmt: skip
    values = {
        "rows": rows,
        "panels": list(names),
        "meshes": list(meshes),
        "lines": sorted({row["line"] for row in rows}),
        "columns": max(1, WIDTH // (62 * len(meshes) + 70)),
        "yTitle": _CHART.x,
    }
    return draw(f"heatmap-{subject.slug}", "heatmap", values, _CHART.title, subject.subtitle)


def colour(ratio: float) -> str:
    """Return the colour of a field: its distance from neutral is the ratio's logarithm, scaled."""
    share = math.log(ratio) / math.log(FARTHEST_RATIO)
    return blend("c0" if share < 0 else "c1", "shade", 0.55 * min(abs(share), 1))
