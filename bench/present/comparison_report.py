"""A comparison of two runs as an HTML page, a Markdown page, a CSV file and on a terminal."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from bench.analyse.comparisons import Comparison
from bench.analyse.run_changes import Change, Compared, Row, compare, compile_s
from bench.present import comparison_sentences, terminal
from bench.present.bounds import sure
from bench.present.columns import Column, Figure, Table, formatted, item, ratio_figure
from bench.present.rendering import write_pages
from bench.present.run_environment import started
from bench.present.terminal import plain
from bench.records import files, numbers
from bench.records.paths import PROGRAM
from bench.records.statuses import CHANGE_STYLES, STATUSES
from bench.records.store import Run


def _sides(change: Change, column: str, unit: str, separator: str = ", ") -> str:
    return separator.join(formatted(side[column], unit) for side in (change.a, change.b))


CHANGES = (
    Column("implementation", "Implementation", detail=lambda c: "baseline" * c.is_baseline),
    Column("step_s", "Step time", "A, B", "s", value=lambda c: Figure(_sides(c, "step_s", "s"))),
    Column("step", "B over A", "step time, 95 %", "ratio", lambda c: ratio_figure(c.step)),
    Column("ratio", "To baseline", "A, B", "ratio",
           value=lambda c: Figure(_sides(c, "ratio", "ratio"))),
    Column("against_baseline", "B over A", "to baseline, 95 %", "ratio",
           value=lambda c: ratio_figure(c.against_baseline)),
    Column("verdict", "Verdict", value=lambda c: c.verdict.word,
           detail=lambda c: f"{sure(c.verdict.low, c.verdict.high)}, "
           + ("against the baseline" if c.source == "baseline" else "step times")),
    Column("compile", "Compile", "B over A", "ratio", optional=True,
           detail=lambda c: " to ".join(numbers.seconds(compile_s(side)) for side in (c.a, c.b))),
    Column("memory", "Memory", "B over A", "ratio", optional=True,
           detail=lambda c: _sides(c, "memory_bytes", "bytes", " to ")),
)  # fmt: skip
"""Columns of a table of `Change`. In most runs, compile times and memory do not change."""

SHORT = (
    Column("implementation", "Implementation"),
    Column("step", "Step time", format="ratio", value=lambda c: ratio_figure(c.step)),
    Column("against_baseline", "To baseline", format="ratio",
           value=lambda c: ratio_figure(c.against_baseline)),
    Column("verdict", "Verdict",
           value=lambda c: c.verdict.word + " *" * (c.source == "step time")),
    Column("compile", "Compile", format="ratio", optional=True),
    Column("memory", "Memory", format="ratio", optional=True),
)  # fmt: skip
"""The columns that fit on a terminal, all of them B over A; verdicts on step times have a star."""


class Group(NamedTuple):
    """Cells that share one remark."""

    a: str
    """How they ended in A, or the run that alone has them."""
    b: str
    """How they ended in B, or what the other run lacks."""
    number: int
    """Number of cells."""
    cells: list[str]
    """One line per block: `block: implementation, implementation`."""


CELLS = Column(
    "cells", "Cells", value=lambda g: Figure(numbers.count(g.number, "cell"), "; ".join(g.cells))
)


def blocks(compared: Compared) -> list[Table]:
    """Return a table for every block with cells that can be compared."""
    tables = []
    for one, other in compared.blocks:
        if changes := [change for change in compared.changes if change.block == one.name]:
            facts = [_baseline(one, other), _floors(one, other)]
            tables.append(Table(f"{one.subject}, {one.place}", CHANGES, changes, facts))
    return tables


def _baseline(one: Comparison, other: Comparison) -> str:
    if one.baseline == other.baseline:
        return f"Baseline in both: {one.baseline}."
    return f"Baselines differ: {one.baseline or 'none'} in A, {other.baseline or 'none'} in B."


def _floors(one: Comparison, other: Comparison) -> str:
    widths = [
        f"up to {numbers.percent(block.floor_width)}" if block.floor_width else "unknown"
        for block in (one, other)
    ]
    return f"Noise floor of the ratios to the baseline: {widths[0]} in A, {widths[1]} in B."


def endings(compared: Compared) -> list[Group]:
    """Group the cells that ended differently by how they ended."""
    groups: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for a, b in compared.ended:
        groups[_ending(a), _ending(b)].append((a["block"], a["implementation"]))
    return [Group(a, b, len(cells), _lines(cells)) for (a, b), cells in groups.items()]


def absences(compared: Compared) -> list[Group]:
    """Group the cells of only one run by what the other lacks."""
    return [
        Group(run, absence, len(cells), _lines((cell["block"], _named(cell)) for cell in cells))
        for (run, absence), cells in compared.only.items()
    ]


def _named(cell: Row) -> str:
    ended = "" if cell["status"] == "ok" else f" ({_ending(cell)})"
    return f"{cell['implementation']}{ended}"


def _ending(cell: Row) -> str:
    label = STATUSES[cell["status"]].label
    return f"{label}: {cell['reason']}" if cell["reason"] else label


def _lines(cells: Iterable[tuple[str, str]]) -> list[str]:
    blocks: defaultdict[str, list[str]] = defaultdict(list)
    for block, implementation in cells:
        blocks[block].append(implementation)
    return [f"{block}: {', '.join(names)}" for block, names in blocks.items()]


SHOWN = 8
"""Blocks, or reasons, that a list on a terminal shows; the page shows all."""


def build(a: Run, b: Run, output: Path, margin: float | None) -> Compared:
    """Compare run B with run A, and write `compare.html`, `.md` and `.csv` into a folder.

    `margin` is the relative difference of step times that is negligible; None for the runs' own.

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
    absent = Column("a", "Only in"), Column("b", "Because"), CELLS
    options = (a["run"], b["run"], "--margin", f"{100 * compared.margin:g}")
    return {
        "a": a["run"],
        "b": b["run"],
        "setting": comparison_sentences.setting(compared),
        "apart": comparison_sentences.APART,
        "tally": comparison_sentences.tally(compared),
        "basis": comparison_sentences.basis(compared),
        "runs": Table("The two runs, and everything recorded that differs", (name, *sides), facts),
        "caveats": comparison_sentences.caveats(compared),
        "blocks": blocks(compared),
        "endings": Table(
            "Cells that ended differently, with the reasons", (*sides, CELLS), endings(compared)
        ),
        "missing": Table(
            "Cells of one run only, and what the other lacks", absent, absences(compared)
        ),
        "command": f"{PROGRAM} compare {shlex.join(options)}",
    }


def show(console: Console, compared: Compared) -> None:
    """Print the differences between the runs, then the changes; briefly if nothing compares.

    The lines fit on a terminal of 80 columns.
    """
    for name, run in (("A", compared.a.manifest), ("B", compared.b.manifest)):
        console.print(plain(f"{name}  {run['run']}, started {started(run)}"))
    console.print(plain(comparison_sentences.setting(compared)), style="bold")
    if compared.changes:
        _list(console, [f"{each.name}: {each.a} -> {each.b}" for each in compared.differences])
        console.print(plain(comparison_sentences.APART), style="dim")
        console.print(Text("\nB over A (95 %)", style="bold"))
        for block in blocks(compared):
            brief = replace(block, columns=SHORT, facts=())
            terminal.show(console, brief, notes=True, styles=CHANGE_STYLES)
        if any(change.source == "step time" for change in compared.changes):
            console.print(Text("* on step times, which are not paired", style="dim"))
        if any(change.compile for change in compared.changes):
            console.print(Text("Compile: one first call in each run, so no verdict", style="dim"))
    for group in endings(compared):
        console.print(Text("\nended differently", style="yellow"))
        _list(console, (f"A {group.a}", f"B {group.b}"))
        _list(console, group.cells)
    if missing := absences(compared):
        console.print(Text("\nin one run only", style="yellow"))
        _list(console, [f"{g.a}: {numbers.count(g.number, 'cell')}; {g.b}" for g in missing])
    for caveat in comparison_sentences.caveats(compared):
        console.print(Text(f"\n{caveat.title}. ", style="bold").append(plain(caveat.text)))
    console.print(Text(f"\n{comparison_sentences.tally(compared)}", style="bold"))
    if basis := comparison_sentences.basis(compared):
        console.print(basis)


def _list(console: Console, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        console.print(plain(f"  {line}"))
    if len(lines) > SHOWN:
        console.print(f"  and {len(lines) - SHOWN} more")
