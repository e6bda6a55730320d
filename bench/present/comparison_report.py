"""A comparison of two runs as an HTML page, a Markdown page, a CSV file and on a terminal."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.analyse.run_changes import Compared, compare
from bench.present import comparison_sentences, comparison_tables, terminal
from bench.present.columns import Column, Table, item
from bench.present.rendering import write_pages
from bench.present.run_environment import started
from bench.present.terminal import plain
from bench.records import files, numbers
from bench.records.statuses import CHANGE_STYLES
from bench.records.store import Run

SHOWN = 8
"""Blocks, or reasons, that a list on a terminal shows; the page shows all."""


def build(a: Run, b: Run, output: Path, margin: float | None) -> Compared:
    """Compare run B with run A, and write `compare.html`, `.md` and `.csv` into a folder.

    Args:
      a: the run to compare with.
      b: the run to compare.
      output: the folder; it is created if missing.
      margin: relative difference of step times that is negligible; None for the runs' own.

    Raises:
      OSError: the folder cannot be written.
    """
    compared = compare(a, b, margin)
    output.mkdir(parents=True, exist_ok=True)
    files.write(output / "compare.csv", compared.table.to_csv(index=False, lineterminator="\n"))
    write_pages(output, "compare", **content(compared))
    return compared


def content(compared: Compared) -> dict[str, Any]:
    """Return everything that the page shows, by the names that its template uses."""
    a, b = compared.a.manifest, compared.b.manifest
    facts = [
        {"name": "Run", "kind": "", "a": a["run"], "b": b["run"]},
        {"name": "Started", "kind": "", "a": started(a), "b": started(b)},
        *compared.differences,
    ]
    sides = Column("a", "A"), Column("b", "B")
    name = Column("name", "", detail=lambda row: item(row, "kind"))
    absent = Column("a", "Only in"), Column("b", "Because"), comparison_tables.CELLS
    command = ("python", "-m", "bench", "compare", a["run"], b["run"])
    return {
        "a": a["run"],
        "b": b["run"],
        "setting": comparison_sentences.setting(compared),
        "apart": comparison_sentences.APART,
        "tally": comparison_sentences.tally(compared),
        "basis": comparison_sentences.basis(compared),
        "runs": Table("The two runs, and everything recorded that differs", (name, *sides), facts),
        "caveats": comparison_sentences.caveats(compared),
        "blocks": comparison_tables.blocks(compared),
        "endings": Table(
            "Cells that ended differently, with the reasons",
            (*sides, comparison_tables.CELLS),
            comparison_tables.endings(compared),
        ),
        "missing": Table(
            "Cells that only one of the runs has, and what the other lacks",
            absent,
            comparison_tables.missing(compared),
        ),
        "command": shlex.join([*command, "--margin", f"{100 * compared.margin:g}"]),
    }


def show(console: Console, compared: Compared) -> None:
    """Print the differences between the runs, then the changes; briefly if nothing compares.

    The lines fit on a terminal of 80 columns.
    """
    for name, run in (("A", compared.a.manifest), ("B", compared.b.manifest)):
        console.print(plain(f"{name}  {run['run']}, started {started(run)}"))
    console.print(plain(comparison_sentences.setting(compared)), style="bold")
    if compared.changes:
        for each in compared.differences:
            console.print(plain(f"  {each.name}: {each.a} -> {each.b}"))
        console.print(plain(comparison_sentences.APART), style="dim")
        console.print(Text("\nB over A (95 %)", style="bold"))
        for block in comparison_tables.blocks(compared):
            brief = replace(block, columns=comparison_tables.SHORT, facts=())
            terminal.show(console, brief, notes=True, styles=CHANGE_STYLES)
        if any(change.source == "step time" for change in compared.changes):
            console.print(Text("* on step times, which are not paired", style="dim"))
        if any(change.compile for change in compared.changes):
            console.print(Text("Compile: one first call in each run, so no verdict", style="dim"))
    for group in comparison_tables.endings(compared):
        console.print(Text("\nended differently", style="yellow"))
        _list(console, (f"A {group.a}", f"B {group.b}"))
        _list(console, group.cells)
    missing = comparison_tables.missing(compared)
    if missing:
        console.print(Text("\nin one run only", style="yellow"))
        _list(console, [f"{g.a}: {numbers.count(g.number, 'cell')}; {g.b}" for g in missing])
    for caveat in comparison_sentences.caveats(compared):
        console.print(Text(f"\n{caveat.title}. ", style="bold").append(plain(caveat.text)))
    console.print(Text(f"\n{comparison_sentences.tally(compared)}", style="bold"))
    console.print(comparison_sentences.basis(compared))


def _list(console: Console, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        console.print(plain(f"  {line}"))
    if len(lines) > SHOWN:
        console.print(f"  and {len(lines) - SHOWN} more")
