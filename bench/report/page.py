"""Puts tables, words and plots onto one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench.report import figures, stragglers, traces, variants, views, words
from bench.report.templates import environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.report.figures import Figures
    from bench.report.plots.style import Plot
    from bench.report.tables import Comparison, Tables
    from bench.report.views import Table
    from bench.report.words import Summary
    from bench.rows import Manifest


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


def content(
    found: Tables,
    manifest: Manifest,
    drawn: Figures | None = None,
    summaries: Mapping[str, Summary] | None = None,
) -> Content:
    """Everything the page shows; plots and summaries are made here if they are not given."""
    cells = found.cells
    drawn = drawn or figures.draw(found)
    summaries = summaries or words.summaries(found)
    groups: dict[str, list[Comparison]] = {}
    for comparison in found.comparisons:
        groups.setdefault(comparison.subject, []).append(comparison)
    changed = variants.find(found.comparisons)
    subjects = [
        _subject(name, blocks, [e for e in changed if e.block.subject == name], found=found,
                 manifest=manifest, drawn=drawn, summaries=summaries)
        for name, blocks in groups.items()
    ]  # fmt: skip
    return Content(
        manifest=manifest,
        command=views.command(manifest),
        started=views.started(manifest),
        headline=words.headline(list(summaries.values())),
        decisions=words.decisions(cells),
        tally=words.tally(cells),
        caveats=words.caveats(found, manifest),
        environment=views.environment(manifest),
        subjects=subjects,
        timeline=_inlined(drawn.host) if drawn.host else None,
        endings=views.endings(cells),
        traced=bool(found.traces),
    )


def html(page: Content) -> str:
    """One file with no links to fetch and no scripts."""
    return environment(markdown=False).get_template("template.html.j2").render(page=page)


def _subject(
    name: str,
    blocks: list[Comparison],
    changed: list[variants.Effect],
    *,
    found: Tables,
    manifest: Manifest,
    drawn: Figures,
    summaries: Mapping[str, Summary],
) -> Subject:
    timed = [b for b in blocks if b.ranked]
    charts = drawn.subjects[name]
    ratios = [_inlined(chart) for chart in charts if chart.kind == "ratios"]
    return Subject(
        name=name,
        anchor=figures.anchor(blocks[0]),
        summaries=[summaries[b.name] for b in blocks],
        curves=[_inlined(chart) for chart in charts if chart.kind == "scaling"],
        ratios=ratios[0] if ratios else None,
        left_out=drawn.left_out.get(name, ""),
        variant=views.variant(changed) if changed else None,
        communication=views.communication(timed),
        blocks=[_block(b, found, manifest) for b in timed],
    )


def _inlined(chart: figures.Chart) -> Chart:
    return Chart(
        chart.title, f"{chart.label}; the tables hold its numbers", chart.plot, chart.table
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
