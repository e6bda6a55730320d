"""The files of a report: pages, plots and tables, all derived only from stored rows."""

from pathlib import Path

import pandas as pd

from bench.analyse import cell_table, loss_curves
from bench.analyse.causes import from_baseline
from bench.analyse.cell_table import Tables
from bench.present import (
    markdown,
    page,
    phase_tables,
    placing_table,
    print_plots,
    run_environment,
)
from bench.present.explanation import causes_frame
from bench.present.plots.drawing_process import drawing
from bench.records import derived_files, files, frames
from bench.records.rows import BlockRow
from bench.records.store import Run


def build(run: Run, found: Tables | None = None, *, all_plots: bool = False) -> Path:
    """Write the report of a stored run into its folder and return the path of `report.html`.

    Besides the page, this writes `report.md`, `plots/`, and tables as CSV and Parquet: `cells`,
    `samples` and `blocks`, and, if measured, `trace_steps`, `trace_operations`, `causes`, `inputs`,
    `ablations`, `checkpoints`, `losses` and `max_batch`. Equal rows give equal bytes, except for
    the order of fonts in PDFs. `share.svg`, `share.pdf` and `share.png` are a picture of the page's
    first screen.
    `found` are the run's tables, if they are known already. With `all_plots`, every plot is drawn,
    not only as many as take a few seconds.
    """
    directory = run.directory
    found = found or cell_table.build(run)
    drawn = print_plots.draw(found, every=all_plots, machine=run_environment.hardware(run.manifest))
    projected = derived_files.find_projection(directory)
    plots = directory / "plots"
    plots.mkdir(exist_ok=True)
    places = [(chart.plot, plots) for chart in drawn.charts]
    about = f"{run_environment.machine(run.manifest)}; {run_environment.started(run.manifest)}"
    picture = placing_table.picture(found, run_environment.question(run.manifest), about)

    with drawing([*places, *([(picture, directory)] if picture else [])]):
        for name, frame in _frames(run, found).items():
            frames.write(frame, directory, name)
        text = markdown.content(found, run.manifest, drawn, projected)
        files.write(directory / "report.md", markdown.render(text))
        files.write(directory / "report.html", page.html(found, run.manifest, projected))
    return directory / "report.html"


def _frames(run: Run, found: Tables) -> dict[str, pd.DataFrame]:
    blocks = pd.DataFrame(run.block_rows, columns=[*BlockRow.__annotations__])
    frames = {"cells": found.cells, "samples": run.samples, "blocks": blocks}
    if found.traces:
        traces = found.traces.values()
        frames["trace_steps"] = pd.DataFrame(
            {"cell": row["cell"], **step, "counted": step["step"] in row["counted"]}
            for row in traces
            for step in row["steps"]
        )
        frames["trace_operations"] = pd.DataFrame(
            {"cell": row["cell"], **operation} for row in traces for operation in row["ops"]
        )
        pairs = (from_baseline(block, found.traces) for block in found.comparisons)
        frames["causes"] = causes_frame(pair for own in pairs for _, pair in own)
    phases = filter(None, phase_tables.tables(found, found.comparisons))
    frames |= {table.name: pd.DataFrame(table.rows) for table in phases}
    if trainings := loss_curves.find(found):
        frames["losses"] = loss_curves.curves_frame(trainings)
    if found.largest:
        frames["max_batch"] = pd.DataFrame(found.largest)
    return frames
