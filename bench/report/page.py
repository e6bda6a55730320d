"""Puts tables, words and plots onto one HTML page and one Markdown page."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench import numbers
from bench.report import plots, scaling, stragglers, traces, variants, views, words
from bench.report.templates import environment

if TYPE_CHECKING:
    from bench.report.plots import Plot
    from bench.report.tables import Comparison, Tables
    from bench.report.views import Table
    from bench.report.words import Summary
    from bench.rows import Manifest

FOREST_LINES = 160
SCALING_LINES = 60
"""Most lines of a subject's forest plot over its panels, and of its scaling plots together. More
could not be read, take seconds to draw, and the tables hold them all."""


@dataclass(frozen=True)
class Chart:
    """A plot, what it says without seeing it, and the numbers behind it."""

    title: str
    label: str
    plot: Plot
    table: Table | None
    """None where the subject's tables hold them anyway."""

    @property
    def svg(self) -> Markup:
        """For the page. The plots module escapes what it draws."""
        return Markup(self.plot.inline(self.label))  # noqa: S704


@dataclass(frozen=True)
class Block:
    """A block's tables."""

    measured: Table
    processes: Table | None
    """Which process is slow; None where there is one."""
    breakdown: Table | None
    """What traces showed; None without any."""
    causes: list[Table]
    """Of each implementation that differs from the baseline and was traced."""
    work: Table
    """What can be told without running."""


@dataclass(frozen=True)
class Subject:
    """A workload at one size, with one set of options."""

    name: str
    anchor: str
    summaries: list[Summary]
    curves: list[Chart]
    ratios: Chart | None
    left_out: str
    """What is not drawn; empty if everything is."""
    variant: Table | None
    """What this environment changes; None where it is the usual one."""
    communication: Table | None
    """None where all meshes have one device, or nothing is known."""
    blocks: list[Block]


@dataclass(frozen=True)
class Content:
    """Everything on the page."""

    manifest: Manifest
    command: str
    started: str
    headline: str
    decisions: str
    tally: str
    caveats: list[words.Caveat]
    environment: list[tuple[str, str]]
    subjects: list[Subject]
    timeline: Chart | None
    """What the host did over the run; None where nothing was timed."""
    endings: list[views.Ending]
    traced: bool

    @property
    def charts(self) -> list[Chart]:
        """Every plot of the page."""
        return [
            chart
            for subject in self.subjects
            for chart in (*subject.curves, *([subject.ratios] if subject.ratios else []))
        ] + ([self.timeline] if self.timeline else [])


def content(found: Tables, manifest: Manifest) -> Content:
    """Everything the page shows, from the report's tables."""
    cells = found.cells
    timed = [] if cells.empty else sorted(cells.loc[cells["status"] == "ok", "implementation"])
    implementations = list(dict.fromkeys(timed))
    groups: dict[str, list[Comparison]] = {}
    for comparison in found.comparisons:
        groups.setdefault(comparison.subject, []).append(comparison)
    curves = scaling.find(cells)
    changed = variants.find(found.comparisons)
    subjects = [
        _subject(name, blocks, [c for c in curves if c.subject == name],
                 [e for e in changed if e.block.subject == name], found=found,
                 manifest=manifest, implementations=implementations)
        for name, blocks in groups.items()
    ]  # fmt: skip
    summaries = [summary for subject in subjects for summary in subject.summaries]
    return Content(
        manifest=manifest,
        command=views.command(manifest),
        started=views.started(manifest),
        headline=words.headline(summaries),
        decisions=words.decisions(cells),
        tally=words.tally(cells),
        caveats=words.caveats(found, manifest),
        environment=views.environment(manifest),
        subjects=subjects,
        timeline=_timeline(found),
        endings=views.endings(cells),
        traced=bool(found.traces),
    )


def html(page: Content) -> str:
    """One file with no links to fetch and no scripts."""
    return environment(markdown=False).get_template("template.html.j2").render(page=page)


def markdown(page: Content) -> str:
    """The same in GitHub's Markdown; plots are links into plots/."""
    return environment(markdown=True).get_template("template.md.j2").render(page=page)


def _subject(
    name: str,
    blocks: list[Comparison],
    curves: list[scaling.Scaling],
    changed: list[variants.Effect],
    *,
    found: Tables,
    manifest: Manifest,
    implementations: list[str],
) -> Subject:
    first = blocks[0]
    anchor = re.sub(r"[^\w-]", "-", f"{first.workload}-{first.size}-{first.options}")
    timed = [b for b in blocks if b.ranked]
    compared = [b for b in blocks if _has_ratios(b)]
    most = max((len(b.ranked) for b in compared), default=1)
    drawn, plotted = compared[: FOREST_LINES // most or 1], curves[: SCALING_LINES // most or 1]
    ratios = None
    if compared:
        title = f"Step time over the baseline's, {name}"
        ratios = Chart(
            title=title,
            label=f"{title}; the tables below hold its numbers",
            plot=plots.forest(f"ratios-{anchor}", drawn, found.cells, implementations),
            table=None,
        )
    return Subject(
        name=name,
        anchor=anchor,
        summaries=[words.summary(b) for b in blocks],
        curves=[
            Chart(
                title=curve.title,
                label=f"{curve.title}, {name}; the table below holds its numbers",
                plot=plots.scaling(curve, implementations),
                table=views.curve(curve),
            )
            for curve in plotted
        ],
        ratios=ratios,
        left_out=_left_out(len(curves) - len(plotted), len(compared) - len(drawn)),
        variant=views.variant(changed) if changed else None,
        communication=views.communication(timed),
        blocks=[_block(b, found, manifest) for b in timed],
    )


def _block(block: Comparison, found: Tables, manifest: Manifest) -> Block:
    differences = traces.differences(block, found.traces)
    reasons = traces.reasons(differences)
    said = [*reasons.values(), *traces.against_fastest(block, found.traces)]
    breakdown = traces.breakdown(block, found.traces, said)
    return Block(
        measured=views.comparison(block, manifest, reasons if breakdown else None),
        processes=stragglers.table(block, found.traces),
        breakdown=breakdown,
        causes=traces.causes(differences),
        work=views.work(block),
    )


def _left_out(curves: int, blocks: int) -> str:
    parts = [
        numbers.count(count, what)
        for count, what in ((curves, "scaling curve"), (blocks, "block"))
        if count > 0
    ]
    if not parts:
        return ""
    return f"Not drawn, but in the tables: {words.listing(parts)} more."


def _timeline(found: Tables) -> Chart | None:
    if found.timeline.empty:
        return None
    title = "The host over time"
    label = f"{title}: step times of the baselines, and what others on the host used"
    return Chart(title, label, plots.timeline("host", found.timeline), None)


def _has_ratios(block: Comparison) -> bool:
    return any(
        not math.isnan(cell["ratio"])
        for cell in block.ranked
        if cell["implementation"] != block.baseline
    )
