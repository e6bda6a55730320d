"""A projection as pages and tables, in the look of the report. Imports no jax."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench.present import predicted_curves
from bench.present.rendering import environment
from bench.project import projection_sentences
from bench.records import files, store

if TYPE_CHECKING:
    from bench.present.text_tables import Table
    from bench.project.curves import Chart
    from bench.project.hardware import Hardware
    from bench.project.projection import Projection


@dataclass(frozen=True)
class Section:
    """A chart and its table."""

    title: str
    table: Table
    plot: str
    """File name, without its ending."""
    svg: Markup


@dataclass(frozen=True)
class Page:
    """What both pages show."""

    run: str
    scaling: str
    here: list[Table]
    sections: list[Section]
    rests: list[str]
    formulae: list[str]
    unread: list[str]
    published: Table
    answers: Table
    command: str


def build(
    found: Projection,
    drawn: Sequence[Chart],
    hardware: Sequence[Hardware],
    folder: Path,
    arguments: Sequence[str],
) -> Path:
    """Write `projection.html`, `.md`, `predictions.csv`, `.parquet` and plots into a folder.

    Args:
      found: what is shown.
      drawn: its charts.
      hardware: that was asked for.
      folder: made if it is not there.
      arguments: of the command, to be shown.

    Returns:
      The page.

    Raises:
      OSError: nothing can be written there.
    """
    plots = folder / "plots"
    # Those of an earlier call may be of hardware that is not asked for now.
    if plots.exists():
        shutil.rmtree(plots)
    plots.mkdir(parents=True)
    for chart in drawn:
        chart.plot.write(plots)
    store.export(found.frame(), folder, "predictions")
    page = Page(
        run=found.run,
        scaling=found.scaling,
        here=projection_sentences.left_out(found),
        sections=[_section(chart) for chart in drawn],
        rests=[projection_sentences.hardware(sheet) for sheet in hardware],
        formulae=projection_sentences.formulae(found),
        unread=[f"{one.cell.name}: {one.reason}" for one in found.unread],
        published=projection_sentences.published(),
        answers=projection_sentences.answers(),
        command=shlex.join(["python", "-m", "bench", "project", *arguments]),
    )
    for name, markdown in ((predicted_curves.PAGE.name, False), ("projection.md", True)):
        template = environment(markdown=markdown).get_template(f"{name}.j2")
        files.write(folder / name, template.render(page=page))
    return folder / predicted_curves.PAGE.name


def _section(chart: Chart) -> Section:
    label = f"Predicted for {chart.title}; the table below holds the numbers"
    return Section(
        title=chart.title,
        table=projection_sentences.table(f"Predicted: {chart.title}", chart.points),
        plot=chart.plot.slug,
        svg=Markup(chart.plot.inline(label)),  # noqa: S704 (escapes itself)
    )
