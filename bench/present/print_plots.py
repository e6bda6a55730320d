"""Selection of a report's printed plots, as many as take a few seconds, with their captions."""

import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.present import sentences
from bench.present.charts import CHARTS
from bench.present.columns import Table
from bench.present.plots.kinds import Subject, plans
from bench.present.plots.vega_plot import Plot, compose
from bench.records.grouping import grouped
from bench.records.paths import adapt_commands

PANELS = 36
"""Limit on the panels of all plots of a report: each takes some 0.06 s in all its formats."""

FEWEST, MOST = 3, 5
"""Bounds on the panels of a plot: the more subjects share PANELS, the fewer each plot has."""


@dataclass(frozen=True)
class PrintedChart:
    """A plot with its title and caption."""

    kind: str
    title: str
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
    """Return the plots of a run, each subject's most informative first, up to PANELS panels or all.

    `machine` is printed on each of them.
    """
    blocks = grouped((block.subject, block) for block in found.comparisons)
    room = math.inf if every else PANELS
    most = int(min(MOST, max(FEWEST, room // (2 * max(1, len(blocks))))))
    planned = {name: plans(Subject(found, own, most)) for name, own in blocks.items()}
    approximate = {name for own in found.comparisons for name in own.approximate}
    chosen: dict[str, list[PrintedChart]] = {subject: [] for subject in planned}
    missing: dict[str, list[str]] = {}
    ranked = ((rank, name, *one) for name, own in planned.items() for rank, one in enumerate(own))
    for _, subject, kind, plan in sorted(ranked, key=itemgetter(0)):
        if plan.panels > room:
            missing.setdefault(subject, []).append(kind)
            continue
        room -= plan.panels
        title = plan.title or CHARTS[kind]["title"]
        slug = plan.slug or re.sub(r"[^\w-]", "-", f"{kind}-{subject.replace(', ', '-')}")
        spec = _marked(plan.spec(), approximate)
        plot = compose(slug, spec, title, _subtitle(blocks[subject], machine))
        chosen[subject].append(PrintedChart(kind, title, plan.note, plot, plan.table()))
    return Figures(chosen, {subject: _left_out(left) for subject, left in missing.items()})


def _subtitle(blocks: Sequence[Comparison], machine: str) -> str:
    """Return the text that makes a figure understandable outside of the report."""
    baselines = ", ".join(dict.fromkeys(block.baseline for block in blocks if block.baseline))
    parts = (blocks[0].subject, f"baseline {baselines}" if baselines else "", machine)
    return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _marked(part: Any, approximate: Container[str]) -> Any:
    """Return a specification that marks the names of approximate steps in legends and labels."""
    if isinstance(part, Mapping):
        return {key: _marked(value, approximate) for key, value in part.items()}
    if isinstance(part, list):
        return [_marked(value, approximate) for value in part]
    return sentences.named(part, part in approximate) if isinstance(part, str) else part


def _left_out(left: Sequence[str]) -> str:
    names = [CHARTS[kind]["heading"].lower() for kind in dict.fromkeys(left)]
    return (
        f"Not drawn, because a report has room for {PANELS} panels: {sentences.listing(names)}. "
        f"Run {adapt_commands('nox -s report -- RUN --all-plots')} to draw everything."
    )
