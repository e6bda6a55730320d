"""A projection as a page, a Markdown file and tables on the terminal."""

import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.text import Text

from bench.present import columns, terminal
from bench.present.charts import looks_of
from bench.present.plots.vega_plot import Plot, compose, time_and_share
from bench.present.rendering import write_pages
from bench.project import prediction_tables as tables
from bench.project.calibration import Trial
from bench.project.hardware import Hardware
from bench.project.program_formulae import Curve, step_on_hardware
from bench.project.projection import Point, Projection
from bench.records import derived_files, files, frames
from bench.records.grouping import grouped
from bench.records.paths import PROGRAM


@dataclass(frozen=True)
class Chart:
    """The curves of one step, one family of meshes and one batch on one kind of hardware."""

    title: str
    plot: Plot
    """The printed chart."""
    fastest: columns.Table
    """The fastest prediction for each number of chips."""


class _Line(NamedTuple):
    """A curve, for all implementations with the same predictions."""

    name: str
    points: list[Point]
    measured: list[Trial]


def draw(projection: Projection) -> list[Chart]:
    """Draw a chart for each hardware, subject, family of meshes and batch."""
    groups = grouped((point.family, point) for point in projection.points)
    names = {point.curve.implementation for point in projection.points}
    tried = [trial for calibrated in projection.here.values() for trial in calibrated.tried]
    each = "per shard" if projection.scaling == "weak" else "in all"
    drawn = []
    for (subject, mesh, batch, hardware), points in groups.items():
        if known := [point for point in points if point.prediction is not None]:
            title = f"{subject} on {hardware}: {mesh}, batch {batch} {each}"
            shown = [point for point in known if point.fitting] or known
            spec = _spec(_lines(tried, shown), hardware, names)
            plot = compose(files.slug(title), spec, title, f"predicted for {hardware}")
            drawn.append(Chart(title, plot, tables.predictions(f"Predicted: {title}", points)))
    return drawn


def _spec(lines: Sequence[_Line], hardware: str, implementations: Iterable[str]) -> dict[str, Any]:
    cells = [cell for line in lines for cell in line.measured]
    precisions = ", ".join(sorted({cell.cell.block.options.precision for cell in cells}))
    whats = [f"predicted for {hardware}, with its interval", f"measured here, {precisions}"]
    times, shares = [], []
    first = min(cells, key=lambda cell: (cell.mesh.size, -_rate(cell)), default=None)
    for line in lines:
        for point in line.points:
            row = partial(_row, line.name, whats[0], "", point.chips)
            if best := point.prediction:
                times.append(row(best.best_s, best.low_s, best.high_s))
            shares.append(row(point.efficiency, point.efficiency_low, point.efficiency_high))
        for cell in line.measured:
            row = partial(_row, line.name, whats[1], cell.cell.implementation, cell.mesh.size)
            times.append(row(cell.measured_s))
            shares.append(row(_rate(cell) / _rate(first or cell)))
    every = looks_of(implementations)
    looks = [every[line.name.split(" +")[0]] for line in lines]
    values = {
        "xTitle": "devices measured here, chips predicted",
        "height": 230,
        "whats": whats if cells else whats[:1],
        "names": [line.name for line in lines],
        "colours": [f"var(--c{look.colour})" for look in looks],
        "shapes": [look.shape for look in looks],
    }
    time = {"title": "Step time (lower is better)", "rows": times}
    share = {"title": "Relative efficiency (higher is better)", "rows": [*shares, {"guide": 1}]}
    return time_and_share("prediction", values, time, share)


def _row(name: str, what: str, series: str, x: int, *values: float | None) -> dict[str, Any]:
    """Return a point of a curve; it is measured if it belongs to a `series`."""
    finite = (None if columns.missing(value) else value for value in values)
    ends = dict(zip_longest(("value", "low", "high"), finite))
    return {"name": name, "x": x, **ends, "what": what, "series": series, "predicted": not series}


def _lines(tried: Sequence[Trial], points: Sequence[Point]) -> list[_Line]:
    """Return the curves, equal predictions merged, sorted by the time on their most chips."""
    curves = grouped((point.curve, point) for point in points)
    alike = grouped(
        (tuple((p.chips, float(f"{p.prediction.best_s:.3g}")) for p in own if p.prediction), curve)
        for curve, own in curves.items()
    )
    lines = []
    for _, same in sorted(alike.items(), key=lambda item: item[0][-1][1]):
        first, *others = same
        name = first.implementation + (f" +{len(others)}" if others else "")
        measured = [trial for curve in same for trial in _measured(tried, curve)]
        lines.append(_Line(name, curves[first], measured))
    return lines


def _measured(tried: Sequence[Trial], curve: Curve) -> list[Trial]:
    """Return the measured cells of a curve's step, by devices.

    If several precisions, environments or numbers of processes were measured, these are the cells
    of one: preferably the curve's own precision, the usual environment and the fewest processes.
    """
    own = curve.block.options.precision
    same = [one for one in tried if step_on_hardware(one.cell, own) == curve.cell(one.mesh.size)]
    by_options = grouped((one.cell.block.options, one) for one in same)
    if not by_options:
        return []
    plainest = min(by_options, key=lambda o: (o.precision != own, o.variant, o.processes, str(o)))
    return sorted(by_options[plainest], key=lambda one: one.mesh.size)


def _rate(cell: Trial) -> float:
    return cell.cell.block.batch / (cell.mesh.size * cell.measured_s)


def build(
    projection: Projection,
    charts: Sequence[Chart],
    hardware: Sequence[Hardware],
    folder: Path,
    arguments: Sequence[str],
) -> Path:
    """Write projection.html, .md, predictions.csv, .parquet and plots/ into a folder.

    Returns the page, which shows the command's `arguments` and the requested sheets. Raises OSError
    if nothing can be written there.
    """
    plots = folder / "plots"
    # An earlier call may have left plots of other hardware.
    shutil.rmtree(plots, ignore_errors=True)
    plots.mkdir(parents=True)
    for chart in charts:
        chart.plot.write(plots)
    frames.write(pd.DataFrame([point.row() for point in projection.points]), folder, "predictions")
    page = write_pages(
        folder,
        derived_files.PROJECTION,
        projection=projection,
        here=tables.cross_validation(projection),
        missing=[f"{one.cell.name}: {one.reason}" for one in projection.missing],
        charts=charts,
        rests=[*map(tables.hardware, hardware), *tables.formulae(projection)],
        published=tables.published(),
        command=f"{PROGRAM} project {shlex.join(arguments)}",
    )
    derived_files.seal(folder)
    return page


def show(console: Console, projection: Projection, charts: Sequence[Chart]) -> None:
    """Print the error of this machine's calibration, then the fastest predictions."""
    for subject, calibrated in projection.here.items():
        console.print(Text(f"{subject}, on this machine", style="bold"))
        console.print(terminal.plain(tables.error(calibrated)))
    for chart in charts:
        narrow = [one for one in chart.fastest.columns if one.key not in ("memory", "program")]
        terminal.show(console, replace(chart.fastest, columns=narrow))
