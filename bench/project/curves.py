"""Predicted curves beside the measured ones. Imports no jax.

What is measured is solid with filled marks. What is predicted is dashed with hollow marks, within a
shaded interval, and says so in the legend.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bench.present.plots import style
from bench.present.plots.style import Grid, Look, Mark
from bench.project.mesh_growth import Curve
from bench.project.projection import Measured, Point, Projection, batch_of, elsewhere_options
from bench.records import files
from bench.records.cells import StepOptions

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from bench.present.plots.style import Plot

DASHED = (0, (4, 2))
_GRID = Grid(columns=2, height=2.5, across=0.55)


@dataclass(frozen=True)
class Chart:
    """Curves of one step, mesh and batch on one kind of hardware."""

    title: str
    hardware: str
    plot: Plot
    points: list[Point]
    """Of all curves in it."""


@dataclass(frozen=True)
class _Line:
    """Implementations of which the same is predicted, as one."""

    name: str
    points: list[Point]
    measured: dict[str, list[Measured]]
    """By implementation."""

    @property
    def cells(self) -> list[Measured]:
        """All that were measured."""
        return [cell for own in self.measured.values() for cell in own]


def draw(found: Projection) -> list[Chart]:
    """A chart for each hardware, subject, family of meshes and batch."""
    groups: defaultdict[tuple[str, str, int, str], list[Point]] = defaultdict(list)
    for point in found.points:
        curve = point.curve
        groups[curve.subject, curve.mesh, curve.batch, point.hardware].append(point)
    charts = []
    for (subject, mesh, batch, hardware), points in groups.items():
        known = [point for point in points if point.prediction is not None]
        if known:
            each = "a shard" if found.scaling == "weak" else "in all"
            title = f"{subject} on {hardware}: {mesh}, batch {batch} {each}"
            shown = [point for point in known if point.fits] or known
            plot = _plot(files.slug(title), found, hardware, shown)
            charts.append(Chart(title, hardware, plot, points))
    return charts


def _plot(slug: str, found: Projection, hardware: str, points: Sequence[Point]) -> Plot:
    lines = _lines(found, points)
    names = [name for line in lines for name in (line.measured or {line.name: []})]
    names = list(dict.fromkeys([*(line.name for line in lines), *names]))
    with style.styled(slug):
        handles = _legend(lines, names, hardware)
        figure, (time, share) = _GRID.figure(2, handles)
        for line in lines:
            look = style.look(line.name, names)
            x = [point.chips for point in line.points]
            best = [p.prediction for p in line.points if p.prediction]
            _band(time, look, x, [p.low_s for p in best], [p.high_s for p in best])
            _dashed(time, look, x, [p.best_s for p in best])
            low = [point.efficiency_low or np.nan for point in line.points]
            high = [point.efficiency_high or np.nan for point in line.points]
            _band(share, look, x, low, high)
            _dashed(share, look, x, [point.efficiency or np.nan for point in line.points])
            for cells in line.measured.values():
                devices = [cell.program.mesh.size for cell in cells]
                _solid(time, look, devices, [cell.measured_s for cell in cells])
                _solid(share, look, devices, _efficiency(cells))
        counts = sorted(
            {point.chips for point in points}
            | {cell.program.mesh.size for line in lines for cell in line.cells}
        )
        for axes in (time, share):
            style.log2_axis(axes, counts)
        seconds = [p.prediction.best_s for p in points if p.prediction]
        seconds += [p.prediction.low_s for p in points if p.prediction]
        seconds += [p.prediction.high_s for p in points if p.prediction]
        seconds += [cell.measured_s for line in lines for cell in line.cells]
        style.log_axis(time, "y", seconds, style.short_si("s"))
        shares = [point.efficiency_high or 0.0 for point in points]
        share.set_ylim(0, 1.08 * max(1.0, *shares))
        share.axhline(1, color=style.MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
        share.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        time.set_title("Step time (lower is better)")
        share.set_title("Efficiency to the fewest (higher is better)")
        _GRID.label(figure, "devices here, chips there", handles)
        return style.render(figure, slug)


def _lines(found: Projection, points: Sequence[Point]) -> list[_Line]:
    """One for all implementations of which the same is predicted; fastest on most chips first."""
    curves: defaultdict[Curve, list[Point]] = defaultdict(list)
    for point in points:
        curves[point.curve].append(point)
    alike: defaultdict[tuple[tuple[int, float], ...], list[Curve]] = defaultdict(list)
    for curve, own in curves.items():
        key = tuple((p.chips, float(f"{p.prediction.best_s:.3g}")) for p in own if p.prediction)
        alike[key].append(curve)
    lines = []
    for key, same in sorted(alike.items(), key=lambda one: one[0][-1][1]):
        del key
        first, *others = same
        name = first.implementation + (f" +{len(others)}" if others else "")
        measured = {c.implementation: _of(found, c) for c in same}
        lines.append(_Line(name, curves[first], {n: own for n, own in measured.items() if own}))
    return lines


def _of(found: Projection, curve: Curve) -> list[Measured]:
    """Measured cells of a curve's step, by devices; of another precision, if not in the curve's."""
    alike: defaultdict[StepOptions, list[Measured]] = defaultdict(list)
    for one in found.measured:
        program = one.program
        (first, _), *others = program.mesh.axes
        if (
            program.implementation == curve.implementation
            and (program.workload, program.size) == (curve.workload, curve.size)
            and (first, tuple(others)) == (curve.first, curve.family)
            and batch_of(found.scaling, program.batch, program.mesh) == curve.batch
            and elsewhere_options(program.options, curve.options.precision) == curve.options
        ):
            alike[program.options].append(one)
    # Of several environments or numbers of processes it is the plainest one.
    plainest = min(
        alike,
        key=lambda o: (o.precision != curve.options.precision, o.variant, o.processes, str(o)),
        default=None,
    )
    return sorted(alike[plainest], key=lambda one: one.program.mesh.size) if plainest else []


def _efficiency(cells: Sequence[Measured]) -> list[float]:
    """A device's throughput, relative to that of the fewest."""
    rates = [one.program.batch / (one.program.mesh.size * one.measured_s) for one in cells]
    return [rate / rates[0] for rate in rates]


def _band(
    axes: Axes, look: Look, x: Sequence[int], low: Sequence[float], high: Sequence[float]
) -> None:
    top = [value if np.isfinite(value) else 1e3 * max(low) for value in high]
    axes.fill_between(x, low, top, color=look.colour, alpha=0.12, linewidth=0, zorder=1)


def _dashed(axes: Axes, look: Look, x: Sequence[int], y: Sequence[float]) -> None:
    axes.plot(x, y, color=look.colour, linewidth=1.2, linestyle=DASHED, zorder=2)
    points = zip(x, y, strict=True)
    style.marks(axes, [Mark(a, b, look.colour, look.marker, hollow=True) for a, b in points])


def _solid(axes: Axes, look: Look, x: Sequence[int], y: Sequence[float]) -> None:
    axes.plot(x, y, color=look.colour, linewidth=1.4, zorder=2)
    points = zip(x, y, strict=True)
    style.marks(axes, [Mark(a, b, look.colour, look.marker) for a, b in points])


def _legend(lines: Iterable[_Line], names: Sequence[str], hardware: str) -> list[Artist]:
    handles: list[Artist] = []
    for line in lines:
        handle: Line2D = style.handle(line.name, names)  # type: ignore[assignment]
        handle.set_linestyle(DASHED)
        handle.set_markerfacecolor(style.PAPER)
        handle.set_markeredgewidth(0.9)
        handle.set_label(f"{style.short(line.name)}, predicted")
        handles.append(handle)
    precisions = {cell.program.options.precision for line in lines for cell in line.cells}
    if precisions:
        handles.append(style.guide(f"measured here, {', '.join(sorted(precisions))}", "solid"))
    handles.append(
        Patch(facecolor=style.MUTED, alpha=0.2, label=f"{hardware}: 95 %; of efficiency, overlap")
    )
    return handles
