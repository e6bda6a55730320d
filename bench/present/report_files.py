"""From stored rows to a report: pages, plots and tables. Imports no jax.

`tables` computes every number, `scaling` finds the curves, `words`, `plots` and `views` say, draw
and format them, `figures` chooses the plots, and `markdown` and `page` put them together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from bench.analyse import cell_table, checkpoint_costs, input_cost, loss_curves
from bench.analyse.causes import traced_differences
from bench.present import markdown, page, predicted_curves, print_plots, sentences, trace_tables
from bench.records import files, store

if TYPE_CHECKING:
    from pathlib import Path

    from bench.records.store import Run


def build(run: Run, *, all_plots: bool = False) -> Path:
    """Write the report of a stored run into its folder and return the path of `report.html`.

    Beside it: `report.md`, `plots/`, and the tables `cells`, `samples` and `blocks` as CSV and
    Parquet; with traces also `trace_steps`, `trace_operations` and `causes`; with input `inputs`,
    with checkpoints `checkpoints`, with loss curves `losses` and `loss_differences`, with a search
    for the largest batch `max_batch`. Reads stored rows alone, so it can be repeated; the same rows
    give the same bytes.

    Args:
      run: as stored.
      all_plots: draw every plot, and not only as many as take a few seconds.
    """
    run_dir = run.directory
    found = cell_table.build(run)
    store.export(found.cells, run_dir, "cells")
    store.export(run.samples, run_dir, "samples")
    store.export(run.blocks, run_dir, "blocks")
    if found.traces:
        rows = found.traces.values()
        store.export(traced_differences.steps_frame(rows), run_dir, "trace_steps")
        store.export(traced_differences.operations_frame(rows), run_dir, "trace_operations")
        store.export(trace_tables.causes_frame(found.comparisons, found.traces), run_dir, "causes")
    given = input_cost.find(found.comparisons)
    if given:
        store.export(input_cost.frame(given), run_dir, "inputs")
    saved = checkpoint_costs.find(found.comparisons, found.checkpoints)
    if saved:
        store.export(checkpoint_costs.frame(saved), run_dir, "checkpoints")
    trainings = loss_curves.find(found)
    if trainings:
        store.export(loss_curves.curves_frame(trainings), run_dir, "losses")
        store.export(loss_curves.differences_frame(trainings), run_dir, "loss_differences")
    if found.largest:
        store.export(pd.DataFrame(found.largest), run_dir, "max_batch")
    drawn = print_plots.draw(found, every=all_plots)
    predicted = predicted_curves.find(run_dir)
    plots = run_dir / "plots"
    plots.mkdir(exist_ok=True)
    for chart in drawn.charts:
        chart.plot.write(plots)
    summaries = sentences.summaries(found)
    files.write(
        run_dir / "report.md",
        markdown.render(markdown.content(found, run.manifest, drawn, summaries, predicted)),
    )
    path = run_dir / "report.html"
    files.write(path, page.html(found, run.manifest, summaries, predicted))
    return path
