"""From stored rows to a report: pages, plots and tables. Imports no jax.

`tables` computes every number, `scaling` finds the curves, `words`, `plots` and `views` say, draw
and format them, and `page` puts them together.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bench import store
from bench.report import page, tables, traces

if TYPE_CHECKING:
    from pathlib import Path

DRAFT = ".report"
"""Folder in which a report is written: its parts are put in place once all of them are whole."""


def build(run_dir: Path) -> Path:
    """Write the report of a run into its folder and return the path of `report.html`.

    Beside it: `report.md`, `plots/`, and the tables `cells`, `samples` and `blocks` as CSV and
    Parquet; with traces also `trace_steps`, `trace_operations` and `causes`. Reads stored rows
    alone, so it can be repeated; the same rows give the same bytes. Where something cannot be
    written, the report that was there stays as it was.

    Raises:
      StoreError: the folder is not a readable run.
      OSError: something cannot be written.
    """
    run = store.load(run_dir)
    draft = run_dir / DRAFT
    shutil.rmtree(draft, ignore_errors=True)  # of one that was killed
    try:
        _write(run, draft)
        for path in sorted(draft.rglob("*")):
            place = run_dir / path.relative_to(draft)
            if path.is_dir():
                place.mkdir(exist_ok=True)
            else:
                path.replace(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return run_dir / "report.html"


def _write(run: store.Run, folder: Path) -> None:
    """Everything into a folder of its own."""
    plots = folder / "plots"
    plots.mkdir(parents=True)
    found = tables.build(run)
    store.export(found.cells, folder, "cells")
    store.export(run.samples, folder, "samples")
    store.export(run.blocks, folder, "blocks")
    if found.traces:
        rows = found.traces.values()
        store.export(traces.steps_frame(rows), folder, "trace_steps")
        store.export(traces.operations_frame(rows), folder, "trace_operations")
        store.export(traces.causes_frame(found.comparisons, found.traces), folder, "causes")
    content = page.content(found, run.manifest)
    for chart in content.charts:
        chart.plot.write(plots)
    (folder / "report.md").write_text(page.markdown(content), encoding="utf-8", newline="\n")
    (folder / "report.html").write_text(page.html(content), encoding="utf-8", newline="\n")
