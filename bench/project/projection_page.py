"""A projection as a page, a Markdown file and tables on the terminal."""

import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.present import terminal
from bench.present.predicted_curves import PAGE
from bench.present.rendering import write_pages
from bench.project import prediction_sentences as sentences
from bench.project import prediction_tables as tables
from bench.project.curve_charts import Chart
from bench.project.hardware import Hardware
from bench.project.projection import Projection
from bench.records import derived_files, frames
from bench.records.paths import PROGRAM

SHOWN = 6
"""Numbers of chips in a table on the terminal: the first ones and the last."""

TERMINAL = {
    "chips": ">chips", "step_s": ">step", "interval": ">95 %", "efficiency": ">eff.",
    "mfu": ">MFU", "bound": "bound by", "implementation": "fastest",
}  # fmt: skip
"""Columns on the terminal, with their headings."""


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
    images = [chart.write(plots) for chart in charts]
    frames.write(projection.frame(), folder, "predictions")
    page = write_pages(
        folder,
        PAGE.stem,
        projection=projection,
        here=tables.cross_validation(projection),
        unread=[f"{one.cell.name}: {one.reason}" for one in projection.unread],
        sections=[
            {
                "title": chart.title,
                "slug": chart.slug,
                "table": tables.predictions(f"Predicted: {chart.title}", chart.points),
                "svg": svg,
            }
            for chart, svg in zip(charts, images, strict=True)
        ],
        rests=[*map(sentences.hardware, hardware), *sentences.formulae(projection)],
        published=tables.published(),
        answers=tables.answers(),
        command=f"{PROGRAM} project {shlex.join(arguments)}",
    )
    derived_files.seal(folder)
    return page


def show(console: Console, projection: Projection, charts: Sequence[Chart]) -> None:
    """Print the error of this machine's calibration, then the fastest predictions."""
    for subject, calibrated in projection.here.items():
        console.print(Text(f"{subject}, on this machine", style="bold"))
        console.print(terminal.plain(sentences.error(calibrated)))
    for chart in charts:
        console.print(Text(f"\npredicted: {chart.title}", style="bold"))
        console.print(_fastest(chart))
        for line in tables.remarks(chart.points):
            console.print(terminal.plain(line), style="dim")


def _fastest(chart: Chart) -> Table:
    columns = {column.key: column for column in tables.PREDICTIONS}
    rows = [
        [columns[key].figure(row).main if row.prediction or key != "bound" else row.reason
         for key in TERMINAL]
        for row in tables.fastest(chart.points)
    ]  # fmt: skip
    if len(rows) > SHOWN:
        rows[SHOWN - 1 : -1] = [["\N{HORIZONTAL ELLIPSIS}", *[""] * (len(TERMINAL) - 1)]]
    return terminal.table(*TERMINAL.values(), rows=rows, gap=1)
