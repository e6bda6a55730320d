"""Step time and parallel efficiency against devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bench.present import run_tables
from bench.present.charts import CHARTS
from bench.present.plots import style
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.style import LINE, MUTED, SHADE, Look, Mark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from bench.analyse.scaling_curves import Scaling
    from bench.present.plots.style import Plot

OVERSUBSCRIBED = "more devices than cores: not scaling"
BOUND = "communication alone, at the measured rate"
_CHART = CHARTS["scaling"]
_DOTS = (0, (1, 1.5))


class Curve(NamedTuple):
    """A line with bars; NaN where there is no value, and the line breaks."""

    look: Look
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot for each scaling curve: the first of each kind, and the others later."""
    seen = set()
    for curve in subject.curves:
        remarks = [
            _CHART.remarks[remark]
            for remark, applies in (
                ("communication", len(curve.communication_bound)),
                ("oversubscribed", curve.points["oversubscribed"].any()),
            )
            if applies
        ]
        yield Plan(
            curve.title,
            " ".join([_CHART.note, *remarks]),
            2,
            lambda curve=curve: draw(curve, subject.implementations),  # type: ignore[misc]
            run_tables.scaling(curve),
            later=curve.kind in seen,
        )
        seen.add(curve.kind)


def draw(curve: Scaling, implementations: Sequence[str]) -> Plot:
    """Draw a curve for every implementation, with quartiles.

    Args:
      curve: what to draw.
      implementations: all of the run, in order.
    """
    points = curve.points
    devices = sorted(points["devices"].unique())
    bound = curve.communication_bound
    with style.styled(curve.slug):
        handles = _legend(curve, implementations)
        figure, (time, share) = style.panels(2, 2.6, _CHART.x, handles=handles)
        for axes, key, columns in (
            (time, "step", ("step_s", "step_q1_s", "step_q3_s")),
            (share, "efficiency", ("efficiency", "efficiency_q1", "efficiency_q3")),
        ):
            draw_curves(
                axes,
                [
                    Curve(style.look(str(name), implementations), *own.T)
                    for name, own in _by_devices(curve, columns)
                ],
            )
            style.log2_axis(axes, devices)
            if curve.oversubscribed_from is not None:
                left, right = axes.get_xlim()
                start = max(curve.oversubscribed_from, left)
                axes.axvspan(start, right, color=SHADE, zorder=0, linewidth=0)
            axes.set_title(_CHART.panels[key])
        time.plot(*curve.ideal.T, color=MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
        share.axhline(1, color=MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
        if len(bound):
            time.plot(*bound.T, color=MUTED, linewidth=1.3, linestyle=_DOTS, zorder=1.5)
        seconds = [*points["step_q1_s"], *points["step_q3_s"], *curve.ideal[:, 1], *bound[:, 1]]
        style.log_axis(time, "y", seconds, style.short_si("s"))
        share.set_ylim(0, 1.08 * np.nanmax([1.0, *points["efficiency_q3"]]))
        share.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        return style.render(figure, curve.slug, curve.title)


def _by_devices(
    curve: Scaling, columns: tuple[str, ...]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield each implementation with its columns on every mesh, the devices first; NaN for none."""
    devices = sorted(curve.points["devices"].unique())
    for name, own in curve.points.groupby("implementation"):
        table = own.set_index("devices")[list(columns)].reindex(devices)
        yield str(name), table.reset_index().to_numpy(float)


def draw_curves(axes: Axes, curves: Sequence[Curve]) -> None:
    """Draw curves on a logarithmic axis, slightly apart, so that equal ones do not hide others."""
    apart = 2 ** (0.16 * ((np.arange(len(curves)) + 0.5) / max(1, len(curves)) - 0.5))
    shifted = [curve._replace(x=curve.x * by) for curve, by in zip(curves, apart, strict=True)]
    lines = [(np.column_stack([curve.x, curve.y]), curve.look) for curve in shifted]
    bars = [
        ([(x, low), (x, high)], curve.look)
        for curve in shifted
        for x, low, high in zip(curve.x, curve.low, curve.high, strict=True)
        if np.isfinite(low + high)
    ]
    style.segments(axes, lines, 1.2, dashed=True)
    style.segments(axes, bars, 0.8)
    style.marks(
        axes,
        [
            Mark(x, y, curve.look.colour, curve.look.marker)
            for curve in shifted
            for x, y in zip(curve.x, curve.y, strict=True)
            if np.isfinite(y)
        ],
    )


def _legend(curve: Scaling, implementations: Sequence[str]) -> list[Artist]:
    """Legend entries: the fastest on the largest mesh first, then reference lines."""
    largest = curve.points.sort_values("devices").groupby("implementation").tail(1)
    names = largest.sort_values("step_s")["implementation"]
    handles: list[Artist] = [style.handle(name, implementations) for name in names]
    handles.append(style.guide("ideal"))
    if len(curve.communication_bound):
        handles.append(style.guide(BOUND, _DOTS))
    if curve.oversubscribed_from is not None:
        handles.append(Patch(facecolor=SHADE, edgecolor=LINE, linewidth=0.5, label=OVERSUBSCRIBED))
    return handles
