"""Projections, plans and checks on the terminal, in 80 columns. Imports no jax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from bench.present.terminal import plain
from bench.project import projection_sentences
from bench.project.curves import Chart
from bench.project.mesh_ranking import Plan, lines, memory, remarks
from bench.project.projection import Projection
from bench.records import numbers

if TYPE_CHECKING:
    from rich.console import Console

    from bench.present import text_tables

SHOWN = 6
"""Numbers of chips in a table; of more, the first ones and the last."""

MESHES = 12
"""Rows of a plan that fit, and that do not."""


def show(console: Console, found: Projection, charts: Sequence[Chart]) -> None:
    """How well this machine's steps are predicted, then the fastest on each number of chips."""
    for subject, calibrated in found.here.items():
        console.print(Text(f"{subject}, here", style="bold"))
        console.print(plain(projection_sentences.error(calibrated)))
    for chart in charts:
        console.print(Text(f"\npredicted: {chart.title}", style="bold"))
        console.print(_chips(chart))
        for line in projection_sentences.remarks(chart.points):
            console.print(plain(line), style="dim")


def _chips(chart: Chart) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, width, left in (
        ("chips", 6, False),
        ("step", 8, False),
        ("95 %", 15, False),
        ("eff.", 7, False),
        ("MFU", 7, False),
        ("binds", 0, True),
        ("fastest", 0, True),
    ):
        table.add_column(
            name,
            width=width or None,
            justify="left" if left else "right",
            overflow="fold",
            no_wrap=bool(width),
        )
    groups = projection_sentences.by_chips(chart.points)
    skipped = len(groups) > SHOWN
    for chips, points in [*groups[: SHOWN - 1], groups[-1]] if skipped else groups:
        if skipped and chips == groups[-1][0]:
            table.add_row("\N{HORIZONTAL ELLIPSIS}")
        best, alike = projection_sentences.fastest(points)
        if best is None or best.prediction is None:
            table.add_row(
                str(chips), "", "", "", "", plain(projection_sentences.why_none(points)), ""
            )
            continue
        found = best.prediction
        more = f" +{len(alike) - 1}" if len(alike) > 1 else ""
        table.add_row(
            str(chips),
            numbers.si(found.best_s, "s"),
            projection_sentences.interval(found),
            numbers.percent(best.efficiency or 0.0),
            numbers.MISSING if found.mfu is None else numbers.percent(found.mfu),
            plain(projection_sentences.binds(found)),
            plain(f"{alike[0]}{more}"),
        )
    return table


def show_plan(console: Console, found: Plan) -> None:
    """The fastest meshes, then those that are struck out."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name, left in (
        ("mesh", True),
        ("implementation", True),
        ("step", False),
        ("95 %", False),
        ("MFU", False),
        ("memory", False),
    ):
        table.add_column(
            name, justify="left" if left else "right", overflow="fold", no_wrap=not left
        )
    shown = lines(found)
    fitting = [line for line in shown if line.fits]
    others = [line for line in shown if not line.fits]
    for line in (*fitting[:MESHES], *others[:MESHES]):
        style = "" if line.fits else "strike dim"
        cells = [line.mesh, line.implementation, line.step]
        cells += [line.interval if line.fits else "does not fit", line.mfu]
        table.add_row(*(plain(text) for text in cells), plain(line.memory), style=style)
    console.print(Text(f"predicted: {found.title}", style="bold"))
    console.print(plain(f"memory {memory(found)} a chip"), style="dim")
    console.print(table)
    for name, rest in (("more that fit", fitting), ("more that do not fit", others)):
        if len(rest) > MESHES:
            console.print(plain(f"{len(rest) - MESHES} {name}, on the page"), style="dim")
    for reason, cells in found.refused:
        console.print(plain(f"{len(cells)} left out: {reason}"), style="dim")
    for remark in remarks(found):
        console.print(plain(remark), style="dim")
    unsupported = sum(len(cells) for _, cells in found.unsupported)
    if unsupported:
        told = f"{unsupported} are not supported by their implementations; the page says why"
        console.print(plain(told), style="dim")


def show_table(console: Console, found: text_tables.Table) -> None:
    """A table of text, names that repeat left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, heading in enumerate(found.headings):
        table.add_column(
            heading.main, justify="right" if number else "left", overflow="fold", min_width=6
        )
    last = ""
    for row in found.rows:
        name = f"{row.name}, {row.note}" if row.note else row.name
        table.add_row(
            plain("" if name == last else name), *(plain(figure.main) for figure in row.figures)
        )
        last = name
    console.print(Text(f"\n{found.title}", style="bold"))
    console.print(table)
    for line in (*found.facts, *found.remarks):
        console.print(plain(line), style="dim")
