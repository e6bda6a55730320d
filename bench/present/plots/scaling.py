"""Step time and parallel efficiency against devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bench.present.plots import style
from bench.present.plots.style import LINE, MUTED, SHADE, Curve, Grid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from bench.analyse.scaling_curves import Scaling
    from bench.present.plots.style import Plot

OVERSUBSCRIBED = "more devices than cores: not scaling"
BOUND = "communication alone, at the measured rate"
_DOTS = (0, (1, 1.5))
_GRID = Grid(columns=2, height=2.3, across=0.55)


def draw(curve: Scaling, implementations: Sequence[str]) -> Plot:
    """Draw a curve of every implementation, with quartiles.

    Args:
      curve: what is drawn.
      implementations: all of the run's, in order: they fix colours and marks.
    """
    points = curve.points
    devices = np.unique(points["devices"].to_numpy(float))
    bound = communication_bound(curve)
    with style.styled(curve.slug):
        handles = _legend(curve, implementations, bounded=bool(len(bound)))
        figure, (time, share) = _GRID.figure(2, handles)
        for axes, value, low, high in (
            (time, "step_s", "step_q1_s", "step_q3_s"),
            (share, "efficiency", "efficiency_q1", "efficiency_q3"),
        ):
            style.draw_curves(axes, curves(curve, (value, low, high), implementations))
            device_axis(axes, curve)
        ideal = _ideal(curve, devices)
        time.plot(devices, ideal, color=MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
        share.axhline(1, color=MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
        if len(bound):
            time.plot(*bound.T, color=MUTED, linewidth=1.3, linestyle=_DOTS, zorder=1.5)
        seconds = [*points["step_q1_s"], *points["step_q3_s"], *ideal, *bound[:, 1]]
        style.log_axis(time, "y", seconds, style.short_si("s"))
        share.set_ylim(0, 1.08 * np.nanmax([1.0, *points["efficiency_q3"]]))
        share.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        time.set_title("Step time (lower is better)")
        share.set_title("Parallel efficiency (higher is better)")
        _GRID.label(figure, "devices", handles)
        return style.render(figure, curve.slug)


def communication_bound(curve: Scaling) -> NDArray[np.float64]:
    """What the least communication of any implementation takes on each mesh, at the measured rate.

    Returns:
      (meshes, 2): devices, and seconds a step; empty unless it is known on two meshes.
    """
    known = curve.points[curve.points["communication_s"] > 0]
    if known["devices"].nunique() < 2:  # noqa: PLR2004
        return np.empty((0, 2))
    least = known.groupby("devices")["communication_s"].min()
    return np.column_stack([least.index, least]).astype(float)


def curves(
    curve: Scaling, columns: tuple[str, str, str], implementations: Sequence[str]
) -> list[Curve]:
    """Columns of a scaling curve's points, by implementation: the value, and its bar's ends."""
    points = curve.points
    devices, place = np.unique(points["devices"].to_numpy(float), return_inverse=True)
    names, line = np.unique(points["implementation"].to_numpy(str), return_inverse=True)
    table = np.full((len(columns), len(names), len(devices)), np.nan)
    table[:, line, place] = points[list(columns)].to_numpy(float).T
    return [
        Curve(style.look(str(name), implementations), devices, *table[:, number])
        for number, name in enumerate(names)
    ]


def device_axis(axes: Axes, curve: Scaling) -> None:
    """The devices of a curve, shaded where they have to share cores."""
    devices = sorted(curve.points["devices"].unique())
    style.log2_axis(axes, devices)
    over = sorted(curve.points.loc[curve.points["oversubscribed"], "devices"].unique())
    if over:
        below = [d for d in devices if d < over[0]]
        start = (below[-1] * over[0]) ** 0.5 if below else devices[0] / 1.25
        axes.axvspan(start, devices[-1] * 1.25, color=SHADE, zorder=0, linewidth=0)


def shade() -> Artist:
    """The legend's entry for that."""
    return Patch(facecolor=SHADE, edgecolor=LINE, linewidth=0.5, label=OVERSUBSCRIBED)


def _ideal(curve: Scaling, devices: NDArray[np.float64]) -> NDArray[np.float64]:
    best = float(curve.points.loc[curve.points["devices"] == devices[0], "step_s"].min())
    return best * devices[0] / devices if curve.kind == "strong" else np.full(len(devices), best)


def _legend(curve: Scaling, implementations: Sequence[str], *, bounded: bool) -> list[Artist]:
    """Fastest on the largest mesh first."""
    largest = curve.points.sort_values("devices").groupby("implementation").tail(1)
    names = largest.sort_values("step_s")["implementation"]
    handles = [style.handle(name, implementations) for name in names]
    handles.append(style.guide("ideal"))
    if bounded:
        handles.append(style.guide(BOUND, _DOTS))
    if curve.points["oversubscribed"].any():
        handles.append(shade())
    return handles
