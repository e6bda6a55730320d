"""Memory of a device against devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from bench.present.plots import scaling, style
from bench.present.plots.style import MUTED, PAPER, Grid, Mark
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from bench.analyse.scaling_curves import Scaling
    from bench.present.plots.style import Plot


def draw(slug: str, curves: Sequence[Scaling], implementations: Sequence[str]) -> Plot:
    """Draw a panel a scaling curve: lines are what the compiler planned, hollow marks measured.

    Args:
      slug: file name.
      curves: of one subject.
      implementations: all of the run's, in order.
    """
    names = sorted({name for curve in curves for name in curve.points["implementation"]})
    known = [curve.points[c] for curve in curves for c in ("memory_bytes", "high_water_bytes")]
    grid = Grid(columns=min(3, max(2, len(curves))), height=1.9, left=0.7, top=0.38, down=0.55,
                shared="y")  # fmt: skip
    with style.styled(slug):
        handles = [style.handle(name, implementations) for name in names]
        if any(values.notna().any() for values in known[1::2]):
            handles.append(
                Line2D([], [], linestyle="", marker="o", markersize=5, color=MUTED,
                       markerfacecolor=PAPER, label="measured high water")
            )  # fmt: skip
        if any(curve.points["oversubscribed"].any() for curve in curves):
            handles.append(scaling.shade())
        figure, panels = grid.figure(len(curves), handles)
        style.log_axis(panels[0], "y", np.concatenate(known), _short_bytes, base=2)
        for axes, curve in zip(panels, curves, strict=True):
            found = scaling.curves(curve, ("memory_bytes",) * 3, implementations)
            _measured(axes, curve, implementations)
            style.draw_curves(axes, found)
            scaling.device_axis(axes, curve)
            axes.set_title(_title(curve))
        for axes in panels[:: grid.columns]:
            axes.set_ylabel("bytes a device")
        grid.label(figure, "devices", handles)
        return style.render(figure, slug)


def _measured(axes: Axes, curve: Scaling, implementations: Sequence[str]) -> None:
    known = curve.points[curve.points["high_water_bytes"].notna()]
    style.marks(
        axes,
        [
            Mark(point["devices"], point["high_water_bytes"], look.colour, look.marker, hollow=True)
            for point in known.to_dict("records")
            for look in [style.look(point["implementation"], implementations)]
        ],
        size=7,
    )


def _title(curve: Scaling) -> str:
    fixed = "in all" if curve.kind == "strong" else "a device"
    return f"{style.short(curve.family)}\nbatch {curve.batch} {fixed}"


def _short_bytes(value: float) -> str:
    number, _, prefixed = numbers.bytes_(value).partition(numbers.NARROW)
    return f"{float(number):g} {prefixed}"
