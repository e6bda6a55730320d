"""Selection of a report's printed plots, and their captions: as many as take a few seconds."""

import math
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.present import sentences
from bench.present.charts import CHARTS
from bench.present.columns import Table
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.vega_plot import Plot, compose
from bench.records.paths import as_typed

PANELS = 36
"""Limit on the panels of all plots of a report: one takes about 0.1 s in all its formats."""

FEWEST, MOST = 3, 5
"""Bounds of a plot's panels: the more subjects share PANELS, the fewer each plot has."""


@dataclass(frozen=True)
class PrintedChart:
    """A plot with its title and caption."""

    kind: str
    title: str
    label: str
    """Its alternative text."""
    caption: str
    plot: Plot
    table: Table | None = None
    """The figures behind it; None where the report's other tables contain them."""


@dataclass(frozen=True)
class Figures:
    """Every plot of a report."""

    subjects: Mapping[str, list[PrintedChart]]
    """By `Comparison.subject`, in the order of the report."""
    left_out: Mapping[str, str]
    """A sentence for each subject with plots that are not drawn."""

    @property
    def charts(self) -> list[PrintedChart]:
        """All plots."""
        return [chart for charts in self.subjects.values() for chart in charts]


def draw(found: Tables, *, every: bool = False, machine: str = "") -> Figures:
    """Draw the plots of a run, most informative first for every subject, up to PANELS or all.

    `machine` is printed on each of them.
    """
    blocks: dict[str, list[Comparison]] = {}
    for block in found.comparisons:
        blocks.setdefault(block.subject, []).append(block)
    room = math.inf if every else PANELS
    most = int(min(MOST, max(FEWEST, room // (2 * max(1, len(blocks))))))
    cells = found.cells
    subjects = {
        name: Subject(
            slug=re.sub(r"[^\w-]", "-", name.replace(", ", "-")),
            blocks=own,
            cells=cells[cells["block"].isin([block.name for block in own])],
            curves=[curve for curve in found.curves if curve.subject == name],
            traces=found.traces,
            implementations=sorted(cells["implementation"].unique()),
            panels=most,
            machine=machine,
        )
        for name, own in blocks.items()
    }
    approximate = {name for own in found.comparisons for name in own.approximate}
    planned = {name: list(_plans(subject)) for name, subject in subjects.items()}
    chosen: dict[str, list[PrintedChart]] = {subject: [] for subject in planned}
    missing: dict[str, list[str]] = {}
    for rank in zip_longest(*planned.values()):
        for subject, offer in zip(planned, rank, strict=True):
            if offer is None:
                continue
            kind, plan = offer
            if plan.panels > room:
                missing.setdefault(subject, []).append(kind)
                continue
            room -= plan.panels
            data, title = subjects[subject], plan.title or CHARTS[kind].title
            spec, note, table = plan.make()
            slug = plan.slug or f"{kind}-{data.slug}"
            plot = compose(slug, _marked(spec, approximate), title, data.subtitle)
            label = f"{title}, {subject}"
            chosen[subject].append(PrintedChart(kind, title, label, note, plot, table))
    return Figures(chosen, {subject: _left_out(kinds) for subject, kinds in missing.items()})


def _plans(subject: Subject) -> Iterator[tuple[str, Plan]]:
    """Yield the plots of a subject with their kinds, those to be drawn first before the others."""
    plans = [
        (kind, plan)
        for kind, chart in CHARTS.items()
        if chart.printed
        for plan in import_module(f"bench.present.plots.{kind}").plan(subject)
    ]
    yield from sorted(plans, key=lambda offer: offer[1].later)


def _marked(part: Any, approximate: Container[str]) -> Any:
    """Return a specification in which names of approximate steps say so, in legends and labels."""
    if isinstance(part, Mapping):
        return {key: _marked(value, approximate) for key, value in part.items()}
    if isinstance(part, list):
        return [_marked(value, approximate) for value in part]
    return sentences.named(part, part in approximate) if isinstance(part, str) else part


def _left_out(kinds: Sequence[str]) -> str:
    names = [
        CHARTS[kind].heading.lower() + (f" ({count} plots)" if count > 1 else "")
        for kind, count in Counter(kinds).items()
    ]
    return (
        f"Not drawn, because a report has room for {PANELS} panels: {sentences.listing(names)}. "
        f"Run {as_typed('nox -s report -- RUN --all-plots')} to draw everything."
    )
