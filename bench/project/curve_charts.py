"""Charts of predicted curves and measured steps.

Measured steps are solid lines with filled marks. Predictions are dashed lines with hollow marks
inside their shaded interval, and the legend names them as predicted.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.present import charts
from bench.present.plots.vega_plot import SECONDS, WIDTH, compose, log_ticks, spec_of
from bench.project.calibration import Trial
from bench.project.program_formulae import Curve, step_elsewhere
from bench.project.projection import Family, Point, Projection
from bench.records import files
from bench.records.cells import StepOptions


@dataclass(frozen=True)
class Chart:
    """The curves of one step, one family of meshes and one batch on one kind of hardware."""

    title: str
    spec: dict[str, Any]
    """In Vega-Lite, with the colours of the report's page by their names."""
    subtitle: str
    points: list[Point]
    """Points of all curves."""

    @property
    def slug(self) -> str:
        """File name of the chart under plots/, without its suffix."""
        return files.slug(self.title)

    def write(self, folder: Path) -> str:
        """Write the printed chart, and its specification for the report; return the SVG."""
        plot = compose(self.slug, self.spec, self.title, self.subtitle)
        plot.write(folder)
        stored = {"title": self.title, "spec": self.spec}
        files.write(folder / f"{self.slug}.json", json.dumps(stored, allow_nan=False))
        return plot.svg


class _Line(NamedTuple):
    """A curve, for all implementations with the same predictions."""

    name: str
    points: list[Point]
    measured: dict[str, list[Trial]]
    """By implementation."""


def draw(projection: Projection) -> list[Chart]:
    """Draw a chart for each hardware, subject, family of meshes and batch."""
    groups = defaultdict[Family, list[Point]](list)
    for point in projection.points:
        groups[point.family].append(point)
    names = {point.curve.implementation for point in projection.points}
    tried = [trial for calibrated in projection.here.values() for trial in calibrated.tried]
    each = "per shard" if projection.scaling == "weak" else "in all"
    drawn = []
    for (subject, mesh, batch, hardware), points in groups.items():
        if known := [point for point in points if point.prediction is not None]:
            title = f"{subject} on {hardware}: {mesh}, batch {batch} {each}"
            shown = [point for point in known if point.fits] or known
            spec = _spec(_lines(tried, shown), hardware, names)
            drawn.append(Chart(title, spec, f"predicted for {hardware}", points))
    return drawn


def _spec(lines: Sequence[_Line], hardware: str, implementations: Iterable[str]) -> dict[str, Any]:
    cells = [cell for line in lines for own in line.measured.values() for cell in own]
    precisions = ", ".join(sorted({cell.cell.block.options.precision for cell in cells}))
    whats = [f"predicted for {hardware}, with its interval", f"measured here, {precisions}"]
    times, shares = [], []
    first = min(cells, key=lambda cell: (_devices(cell), -_rate(cell)), default=None)
    for line in lines:
        for point in line.points:
            best = point.prediction
            if best:
                ends = (best.best_s, best.low_s, best.high_s)
                times.append(_row(line.name, point.chips, *ends, what=whats[0]))
            values = (point.efficiency, point.efficiency_low, point.efficiency_high)
            shares.append(_row(line.name, point.chips, *values, what=whats[0]))
        for name, own in line.measured.items():
            for cell in own:
                of: dict[str, Any] = {"what": whats[1], "series": name}
                times.append(_row(line.name, _devices(cell), cell.measured_s, **of))
                share = _rate(cell) / _rate(first or cell)
                shares.append(_row(line.name, _devices(cell), share, **of))
    xs = sorted({row["x"] for row in times + shares})
    seconds = [row[key] for row in times for key in ("value", "low", "high") if row[key]]
    low, high = min(seconds) / 1.15, max(seconds) * 1.15
    most = max([1.0, *(row["high"] for row in shares if row["high"])])
    every = charts.looks_of(implementations)
    looks = [every[line.name.split(" +")[0]] for line in lines]
    shared: dict[str, Any] = {
        "xs": xs,
        "xScale": {"type": "log", "base": 2, "domain": [xs[0] / 1.2, xs[-1] * 1.2], "nice": False},
        "xTitle": "devices measured here, chips predicted",
        "width": WIDTH // 2 - 80,
        "height": 230,
        "whats": whats if cells else whats[:1],
        "names": [line.name for line in lines],
        "colours": [f"var(--c{look.colour})" for look in looks],
        "shapes": [look.shape for look in looks],
    }
    time: dict[str, Any] = {
        "title": "Step time (lower is better)",
        "rows": times,
        "yScale": {"type": "log", "domain": [low, high], "nice": False},
        "yAxis": SECONDS | {"values": log_ticks(low, high)},
    }
    efficiency: dict[str, Any] = {
        "title": "Relative efficiency (higher is better)",
        "rows": [*shares, {"guide": 1}],
        "yScale": {"domain": [0, 1.08 * most], "nice": False},
        "yAxis": {"title": None, "tickCount": 5, "format": ".0%"},
    }
    panels = [spec_of("prediction", shared | values) for values in (time, efficiency)]
    return {"hconcat": panels}


def _row(
    name: str,
    x: int,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    *,
    what: str,
    series: str = "",
) -> dict[str, Any]:
    """Return a point of a curve; it is measured if it belongs to a `series`."""
    known = {"value": value, "low": low, "high": high}
    finite = {k: v if v is not None and math.isfinite(v) else None for k, v in known.items()}
    return {"name": name, "x": x, **finite, "what": what, "series": series, "predicted": not series}


def _lines(tried: Sequence[Trial], points: Sequence[Point]) -> list[_Line]:
    """Return the curves, merging equal predictions; the fastest on most chips comes first."""
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
        measured = {curve.implementation: _measured(tried, curve) for curve in same}
        lines.append(_Line(name, curves[first], {n: own for n, own in measured.items() if own}))
    return lines


def _measured(tried: Sequence[Trial], curve: Curve) -> list[Trial]:
    """Return the measured cells of a curve's step, by devices.

    If several precisions, environments or numbers of processes were measured, these are the cells
    with the curve's own precision and the plainest environment.
    """
    by_options = defaultdict[StepOptions, list[Trial]](list)
    for one in tried:
        cell = one.cell
        if step_elsewhere(cell, curve.options.precision) == curve.cell(cell.block.mesh.size):
            by_options[cell.block.options].append(one)
    if not by_options:
        return []
    own = curve.options.precision
    plainest = min(by_options, key=lambda o: (o.precision != own, o.variant, o.processes, str(o)))
    return sorted(by_options[plainest], key=_devices)


def _devices(cell: Trial) -> int:
    return cell.cell.block.mesh.size


def _rate(cell: Trial) -> float:
    """Return the throughput per device."""
    return cell.cell.block.batch / (_devices(cell) * cell.measured_s)
