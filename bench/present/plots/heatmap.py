"""Ratios to the baseline over meshes and batches."""

import math
from collections.abc import Iterator
from typing import Any

from bench.present.charts import CHARTS, FARTHEST_RATIO
from bench.present.columns import missing
from bench.present.plots.plot_plan import Drawing, Plan, Subject, some
from bench.present.plots.vega_plot import WIDTH, spec_of
from bench.records import numbers
from bench.records.statuses import STATUSES, Status

SIDE = 6
"""Limit on the batches, and on the meshes, of a heatmap."""

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
    most = max(1, subject.panels * _FIELDS_A_PANEL // (len(meshes) * len(batches)))
    names, no_names = some(list(typical.index), most, "implementations")
    shown = cells.query("implementation in @names and mesh in @meshes and batch in @batches")
    columns = ["implementation", "mesh", "batch", "ratio", "status"]
    rows = [_row(*cell) for cell in shown[columns].itertuples(index=False)]
    values = {
        "rows": rows,
        "panels": names,
        "meshes": meshes,
        "lines": sorted({row["line"] for row in rows}),
        "columns": max(1, WIDTH // (62 * len(meshes) + 70)),
        "yTitle": CHARTS["heatmap"].x,
    }
    words = CHARTS["heatmap"]
    note = f"{words.note} {words.remarks['untimed']}{no_batches}{no_meshes}{no_names}"
    drawing = Drawing(spec_of("heatmap", values), note)
    yield Plan(1 + len(rows) // _FIELDS_A_PANEL, lambda: drawing)


def _row(name: str, mesh: str, batch: int, ratio: float, status: Status) -> dict[str, Any]:
    row = {"panel": name, "mesh": mesh, "line": int(batch)}
    if missing(ratio):
        label = "no ratio" if status == "ok" else STATUSES[status].short
        return {**row, "label": label}
    return {**row, "share": math.log(ratio, FARTHEST_RATIO), "label": numbers.ratio(ratio)}
