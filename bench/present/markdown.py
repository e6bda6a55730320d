"""A run in GitHub's Markdown: a summary that can be pasted elsewhere, then plots, then tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

from markupsafe import Markup

from bench.analyse import block_ratios, loss_curves
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.present import (
    cell_columns,
    command_lines,
    phase_tables,
    placing_table,
    rendering,
    run_environment,
    run_tables,
    sentences,
    trace_tables,
)
from bench.present.caveats import caveats
from bench.present.cell_columns import Row
from bench.present.columns import Table
from bench.present.print_plots import Figures, PrintedChart
from bench.records import numbers, printable
from bench.records.cells import subject_of
from bench.records.grouping import grouped
from bench.records.rows import Manifest
from bench.records.statuses import STATUSES

BYTES = 450_000
"""Limit on the size of all tables: GitHub displays no file over 512 KB."""

NAMED = 3
"""Limit on the reasons in the summary for each status."""

REASON = 120
"""Limit on the characters of a reason in the summary."""


def content(
    found: Tables, manifest: Manifest, drawn: Figures, projected: str = ""
) -> dict[str, Any]:
    """Return everything that the template shows of a run, by the names it uses."""
    noted = caveats(found, manifest)
    endings = run_tables.endings(found.rows)
    return {
        "summary": _summary(found, manifest, noted, endings),
        "subjects": _subjects(found, manifest, drawn),
        "caveats": noted,
        "endings": endings,
        "environment": run_environment.environment(manifest, found),
        "command": command_lines.of_run(manifest),
        "guide": rendering.reading_guide(traces=found.traces, losses=found.losses, chooser=False),
        "projected": projected,
    }


def render(page: Mapping[str, Any]) -> str:
    """Return the whole page; plots are links into plots/."""
    return rendering.render("report.md", markdown=True, page=page)


def _summary(
    found: Tables, manifest: Manifest, noted: Iterable[str], endings: Table
) -> dict[str, Any]:
    every = sentences.summaries(found)
    counts = [sentences.decisions(found.rows), sentences.tally(found.rows)]
    failed = [row for row in endings.rows if STATUSES[row["status"]].failure]
    by_status = grouped((row["status"], row) for row in failed)
    named = [row for same in by_status.values() for row in same[:NAMED]]
    return {
        "run": manifest["run"],
        "answers": sentences.answers(every),
        "counts": " ".join(filter(None, counts)),
        "matrix": placing_table.make(found),
        "failures": [_failure(row) for row in named],
        "unnamed": len(failed) - len(named),
        "ran_on": run_environment.provenance(manifest),
        "caveats": ", ".join(title[:1].lower() + title[1:] for title in noted),
    }


def _failure(row: Mapping[str, Any]) -> dict[str, str]:
    reason = printable.shortened(" ".join(row["reason"].split()), REASON)
    cells = numbers.count(len(row["cells"]), "cell")
    names = sentences.some(row["implementations"])
    label = STATUSES[row["status"]].label
    return {"status": label, "reason": reason, "cells": f"{names}, {cells}"}


def _subjects(found: Tables, manifest: Manifest, drawn: Figures) -> list[dict[str, Any]]:
    """Render the tables of each subject and its blocks until its share of the room is used up."""
    cells = cell_columns.rows(found, manifest)
    blocks = grouped((block.subject, block) for block in found.comparisons)
    subjects, room = [], BYTES
    for number, (name, own) in enumerate(blocks.items()):
        general = _general(own, found, drawn.subjects[name], manifest)
        timed = [block for block in own if block.ranked]
        of_blocks = (
            Markup("").join(map(macros().section, _of_block(block, found, cells, manifest)))
            for block in timed
        )
        shown = [*_fitting(chain(general, of_blocks), room // (len(blocks) - number))]
        room -= sum(len(text.encode()) for text in shown)
        subjects.append({
            "name": name,
            "charts": drawn.subjects[name],
            "undrawn": drawn.left_out.get(name, ""),
            "sections": shown,
            "left_out": len(general) + len(timed) - len(shown),
        })  # fmt: skip
    return subjects


def _fitting(texts: Iterable[Markup], room: int) -> Iterator[Markup]:
    for text in texts:
        room -= len(text.encode())
        if room < 0:
            return
        yield text


def _general(
    blocks: Sequence[Comparison],
    found: Tables,
    charts: Sequence[PrintedChart],
    manifest: Manifest,
) -> list[Markup]:
    subject = blocks[0].subject
    effects = block_ratios.option_effects(found.comparisons)
    effects = [effect for effect in effects if effect.block.subject == subject]
    trained = [each for each in loss_curves.find(found) if each.block.subject == subject]
    largest = [r for r in found.largest if subject_of(r["workload"], r["options"]) == subject]
    tables = [
        *(chart.table for chart in charts),
        run_tables.variants(effects, manifest),
        run_tables.losses(trained),
        run_tables.largest(largest),
    ]
    return [macros().section(table) for table in tables if table]


def _of_block(
    block: Comparison, found: Tables, cells: Mapping[str, Row], manifest: Manifest
) -> Iterator[Table]:
    """Yield the tables of one block, its times first."""
    yield run_tables.comparison(block, cells, manifest)
    for table in (
        run_tables.processes([block]),
        *phase_tables.tables(found, [block]),
        trace_tables.breakdown(block, found.traces),
    ):
        if table:
            yield replace(table, title=f"{table.title}, {block.place}")


@cache
def macros() -> Any:
    """Return the macros of Markdown texts, which return Markup."""
    return rendering.environment(markdown=True).get_template("macros.md.j2").module
