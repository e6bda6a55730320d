"""Throughput against the global batch: where more work a step still pays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.present.plots import style
from bench.present.plots.style import Curve, Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from bench.present.plots.style import Plot


def draw(slug: str, cells: pd.DataFrame, implementations: Sequence[str]) -> Plot:
    """Draw a panel a mesh, a curve an implementation, with quartiles.

    Args:
      slug: file name.
      cells: `ok` rows of the tidy table, of one subject and unit.
      implementations: all of the run's, in order.
    """
    rate = cells["units_per_s"] * cells["step_s"]
    cells = cells.assign(low=rate / cells["step_q3_s"], high=rate / cells["step_q1_s"])
    names = sorted(cells["implementation"].unique())
    batches = sorted(cells["batch"].unique())
    grid = Grid(columns=3, height=1.9, left=0.7, shared="xy")
    with style.styled(slug):
        handles = [style.handle(name, implementations) for name in names]
        groups = list(cells.groupby(["devices", "mesh"]))
        figure, panels = grid.figure(len(groups), handles)
        style.log2_axis(panels[0], batches)
        limits = [*cells["low"], *cells["high"], *cells["units_per_s"]]
        style.log_axis(panels[0], "y", limits, style.short_si(""))
        for axes, ((_, mesh), rows) in zip(panels, groups, strict=True):
            found = [
                Curve(
                    style.look(str(name), implementations),
                    *own[["batch", "units_per_s", "low", "high"]].to_numpy(float).T,
                )
                for name, own in rows.sort_values("batch").groupby("implementation")
            ]
            style.draw_curves(axes, found)
            axes.set_title(style.short(str(mesh)))
        for axes in panels[:: grid.columns]:
            axes.set_ylabel(f"{cells['unit'].iloc[0]} a second")
        grid.label(figure, "global batch", handles)
        return style.render(figure, slug)
