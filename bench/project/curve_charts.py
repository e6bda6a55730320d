"""Charts of predicted curves and measured steps.

Measured steps are solid lines with filled marks. Predictions are dashed lines with hollow marks
inside their shaded interval, and the legend names them as predicted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from bench.present.plots import style
from bench.present.plots.style import Mark
from bench.project.mesh_growth import Curve
from bench.project.projection import Measured, Point, Projection, batch_of, elsewhere_options
from bench.records import files
from bench.records.cells import StepOptions

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bench.present.plots.style import Look, Plot

DASHED = (0, (4, 2))


@dataclass(frozen=True)
class Chart:
    """The curves of one step, family of meshes and batch on one kind of hardware."""

    title: str
    plot: Plot
    points: list[Point]
    """Points of all its curves."""


@dataclass(frozen=True)
class _Line:
    """A curve, for all implementations with the same predictions."""

    name: str
    points: list[Point]
    measured: dict[str, list[Measured]]
    """By implementation."""

    @property
    def cells(self) -> list[Measured]:
        """Cells of all implementations."""
        return [cell for own in self.measured.values() for cell in own]


def draw(projection: Projection) -> list[Chart]:
    """Draw a chart for each hardware, subject, family of meshes and batch."""
    groups = defaultdict[tuple[str, str, int, str], list[Point]](list)
    for point in projection.points:
        curve = point.curve
        groups[curve.subject, curve.mesh, curve.batch, point.hardware].append(point)
    charts = []
    for (subject, mesh, batch, hardware), points in groups.items():
        if known := [point for point in points if point.prediction is not None]:
            each = "per shard" if projection.scaling == "weak" else "in all"
            title = f"{subject} on {hardware}: {mesh}, batch {batch} {each}"
            shown = [point for point in known if point.fits] or known
            plot = _plot(title, projection, hardware, shown)
            charts.append(Chart(title, plot, points))
    return charts


def _plot(title: str, projection: Projection, hardware: str, points: Sequence[Point]) -> Plot:
    lines = _lines(projection, points)
    names = [line.name for line in lines]
    names = list(dict.fromkeys([*names, *(name for line in lines for name in line.measured)]))
    cells = [cell for line in lines for cell in line.cells]
    predictions = [point.prediction for point in points if point.prediction]
    slug = files.slug(title)
    with style.styled(slug):
        handles = _legend(lines, names, hardware)
        figure, (time, share) = style.panels(
            2, 2.8, "devices measured here, chips predicted", handles=handles
        )
        for line in lines:
            look = style.look(line.name, names)
            x = [point.chips for point in line.points]
            best = [p.prediction for p in line.points if p.prediction]
            _band(time, look, x, [p.low_s for p in best], [p.high_s for p in best])
            _curve(time, look, x, [p.best_s for p in best], hollow=True)
            low, best_share, high = (
                [getattr(point, name) or np.nan for point in line.points]
                for name in ("efficiency_low", "efficiency", "efficiency_high")
            )
            _band(share, look, x, low, high)
            _curve(share, look, x, best_share, hollow=True)
            for own in line.measured.values():
                devices = [cell.program.mesh.size for cell in own]
                _curve(time, look, devices, [cell.measured_s for cell in own])
                _curve(share, look, devices, _efficiency(own))
        counts = {point.chips for point in points} | {cell.program.mesh.size for cell in cells}
        for axes in (time, share):
            style.log2_axis(axes, sorted(counts))
        seconds = [end for p in predictions for end in (p.best_s, p.low_s, p.high_s)]
        seconds += [cell.measured_s for cell in cells]
        style.log_axis(time, "y", seconds, style.short_si("s"))
        share.set_ylim(0, 1.08 * max(1.0, *(point.efficiency_high or 0.0 for point in points)))
        share.axhline(1, color=style.MUTED, linewidth=1, linestyle=style.GUIDE, zorder=1.5)
        share.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.0f} %"))
        time.set_title("Step time (lower is better)")
        share.set_title("Relative efficiency (higher is better)")
        return style.render(figure, slug, title)


def _lines(projection: Projection, points: Sequence[Point]) -> list[_Line]:
    """The curves, those with the same predictions as one; the fastest on most chips first."""
    curves = defaultdict[Curve, list[Point]](list)
    for point in points:
        curves[point.curve].append(point)
    alike = defaultdict[tuple[tuple[int, float], ...], list[Curve]](list)
    for curve, own in curves.items():
        key = tuple((p.chips, float(f"{p.prediction.best_s:.3g}")) for p in own if p.prediction)
        alike[key].append(curve)
    lines = []
    for _, same in sorted(alike.items(), key=lambda item: item[0][-1][1]):
        first, *others = same
        name = first.implementation + (f" +{len(others)}" if others else "")
        measured = {curve.implementation: _measured(projection, curve) for curve in same}
        lines.append(_Line(name, curves[first], {n: own for n, own in measured.items() if own}))
    return lines


def _measured(projection: Projection, curve: Curve) -> list[Measured]:
    """The measured cells of a curve's step, by devices.

    If several precisions, environments or numbers of processes were measured, these are the cells
    of the curve's own precision and the plainest environment.
    """
    by_options = defaultdict[StepOptions, list[Measured]](list)
    for one in projection.measured:
        program = one.program
        (first, _), *others = program.mesh.axes
        if (
            program.implementation == curve.implementation
            and (program.workload, program.size) == (curve.workload, curve.size)
            and (first, tuple(others)) == (curve.first, curve.family)
            and batch_of(projection.scaling, program.batch, program.mesh) == curve.batch
            and elsewhere_options(program.options, curve.options.precision) == curve.options
        ):
            by_options[program.options].append(one)
    if not by_options:
        return []
    own = curve.options.precision
    plainest = min(by_options, key=lambda o: (o.precision != own, o.variant, o.processes, str(o)))
    return sorted(by_options[plainest], key=lambda one: one.program.mesh.size)


def _efficiency(cells: Sequence[Measured]) -> list[float]:
    """Throughput per device, relative to the fewest devices."""
    rates = [one.program.batch / (one.program.mesh.size * one.measured_s) for one in cells]
    return [rate / rates[0] for rate in rates]


def _band(
    axes: Axes, look: Look, x: Sequence[int], low: Sequence[float], high: Sequence[float]
) -> None:
    top = [value if np.isfinite(value) else 1e3 * max(low) for value in high]
    axes.fill_between(x, low, top, color=look.colour, alpha=0.12, linewidth=0, zorder=1)


def _curve(
    axes: Axes, look: Look, x: Sequence[int], y: Sequence[float], *, hollow: bool = False
) -> None:
    line, width = (DASHED, 1.2) if hollow else ("solid", 1.4)
    axes.plot(x, y, color=look.colour, linewidth=width, linestyle=line, zorder=2)
    points = zip(x, y, strict=True)
    style.marks(axes, [Mark(a, b, look.colour, look.marker, hollow=hollow) for a, b in points])


def _legend(lines: Sequence[_Line], names: Sequence[str], hardware: str) -> list[Artist]:
    handles: list[Artist] = []
    for line in lines:
        handle = style.handle(line.name, names)
        handle.set_linestyle(DASHED)
        handle.set_markerfacecolor(style.PAPER)
        handle.set_markeredgewidth(0.9)
        handle.set_label(f"{style.short(line.name)}, predicted")
        handles.append(handle)
    precisions = {cell.program.options.precision for line in lines for cell in line.cells}
    if precisions:
        handles.append(style.guide(f"measured here, {', '.join(sorted(precisions))}", "solid"))
    band = f"{hardware}: 95 % interval, or range of efficiency"
    return [*handles, Patch(facecolor=style.MUTED, alpha=0.2, label=band)]
