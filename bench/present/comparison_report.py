"""A comparison of two runs as an HTML page, a Markdown page, a CSV file and on a terminal.

Its sentences are about the runs' differences, the changes of cells, and reasons for care.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from bench.analyse.comparisons import Comparison, Row
from bench.analyse.ratio_intervals import UNPAIRED_SD
from bench.analyse.run_changes import Change, RunComparison, compare, compile_s, other_files
from bench.present import terminal
from bench.present.bounds import sure
from bench.present.caveats import damage
from bench.present.columns import Column, Figure, Table, formatted, item, ratio_figure
from bench.present.rendering import write_pages
from bench.present.run_environment import started
from bench.present.sentences import ends, listing, verdicts
from bench.present.terminal import plain
from bench.records import files, numbers
from bench.records.paths import PROGRAM, REPORTS
from bench.records.statuses import STATUSES
from bench.records.store import Run


def _sides(change: Change, column: str, unit: str, separator: str = ", ") -> str:
    return separator.join(formatted(side[column], unit) for side in (change.a, change.b))


CHANGES = (
    Column("implementation", "Implementation"),
    Column("step_s", "Step times", "A, B", "s", value=lambda c: Figure(_sides(c, "step_s", "s"))),
    Column("step", "Step time", "B over A, 95 %", "ratio", lambda c: ratio_figure(c.step)),
    Column("ratio", "Ratios", "A, B", "ratio",
           value=lambda c: Figure(_sides(c, "ratio", "ratio"))),
    Column("against_baseline", "To baseline", "B over A, 95 %", "ratio",
           value=lambda c: ratio_figure(c.against_baseline)),
    Column("verdict", "Verdict", value=lambda c: c.verdict.word,
           detail=lambda c: f"{sure(c.verdict.low, c.verdict.high)}, "
           + ("against the baseline" if c.source == "baseline" else "step times")),
    Column("compile", "Compile", "B over A", "ratio", optional=True,
           detail=lambda c: " to ".join(numbers.si(compile_s(side), "s") for side in (c.a, c.b))),
    Column("memory", "Memory", "B over A", "ratio", optional=True,
           detail=lambda c: _sides(c, "memory_bytes", "bytes", " to ")),
)  # fmt: skip
"""Columns of a table of `Change`. In most runs, compile times and memory do not change."""

SHORT = [replace(c, detail=None) for c in CHANGES if c.key not in ("step_s", "ratio")]
"""The columns that fit on a terminal, all of them B over A."""


def blocks(compared: RunComparison) -> list[Table]:
    """Return a table for every block with cells that can be compared."""
    return [
        Table(f"{one.subject}, {one.place}", CHANGES, changes, [*_facts(one, other)])
        for one, other in compared.blocks
        if (changes := [change for change in compared.changes if change.block == one.name])
    ]


def _facts(one: Comparison, other: Comparison) -> Iterator[str]:
    if one.baseline == other.baseline:
        yield f"Baseline in both: {one.baseline}."
    else:
        yield f"Baselines differ: {one.baseline or 'none'} in A, {other.baseline or 'none'} in B."
    widths = (block.floor_width for block in (one, other))
    a, b = (f"up to {numbers.percent(width)}" if width else "unknown" for width in widths)
    yield f"Noise floor of the ratios to the baseline: {a} in A, {b} in B."


def uncompared(compared: RunComparison) -> Table:
    """Return the cells that ended differently, and those that only one run has."""
    rows = [{"cell": a["cell"], "A": _ending(a), "B": _ending(b)} for a, b in compared.ended]
    rows += [
        {"cell": cell["cell"], "A": None, "B": None, run: _ending(cell)}
        for run, cells in compared.only.items()
        for cell in cells
    ]
    columns = Column("cell", "Cell"), Column("A", "A", long=True), Column("B", "B", long=True)
    return Table("Cells that ended differently, or that one run lacks", columns, rows)


def _ending(cell: Row) -> str:
    return ": ".join(filter(None, (STATUSES[cell["status"]].label, cell["reason"])))


SHOWN = 8
"""Limit on the lines of a list on a terminal; the page shows all."""


def build(a: Run, b: Run, output: Path, margin: float | None) -> RunComparison:
    """Compare run B with run A, and write `compare.html`, `.md` and `.csv` into a folder.

    `margin` is the relative difference of step times that is negligible; None for the runs' own.
    Raises OSError if the folder cannot be written.
    """
    compared = compare(a, b, margin)
    output.mkdir(parents=True, exist_ok=True)
    files.write(output / "compare.csv", compared.table.to_csv(index=False, lineterminator="\n"))
    write_pages(output, "compare", **content(compared))
    return compared


def content(compared: RunComparison) -> dict[str, Any]:
    """Return everything that the page shows, by the names that its template uses."""
    a, b = compared.a.manifest, compared.b.manifest
    facts = [
        {"name": "Run", "kind": "", "a": a["run"], "b": b["run"]},
        {"name": "Started", "kind": "", "a": started(a), "b": started(b)},
        *compared.differences,
    ]
    sides = Column("a", "A"), Column("b", "B")
    name = Column("name", "", detail=lambda row: item(row, "kind"))
    folders = (compared.a.directory, compared.b.directory)
    names = (one.name if one.parent == REPORTS else one.as_posix() for one in folders)
    options = (*names, "--margin", f"{100 * compared.margin:g}")
    return {
        "a": a["run"],
        "b": b["run"],
        "setting": setting(compared),
        "apart": APART,
        "tally": tally(compared),
        "margin": numbers.percent(compared.margin),
        "runs": Table("The two runs, and everything recorded that differs", (name, *sides), facts),
        "caveats": caveats(compared),
        "blocks": blocks(compared),
        "uncompared": uncompared(compared),
        "command": f"{PROGRAM} compare {shlex.join(options)}",
    }


def show(console: Console, compared: RunComparison) -> None:
    """Print the differences between the runs, the changes and the tally.

    If nothing compares, the tally comes first. The lines fit on a terminal of 80 columns.
    """
    answer = plain(tally(compared), "bold")
    if not compared.changes:
        console.print(answer)
    for name, run in (("A", compared.a.manifest), ("B", compared.b.manifest)):
        console.print(plain(f"{name}  {run['run']}, started {started(run)}"))
    console.print(plain(setting(compared), "bold"))
    if compared.changes:
        _show_changes(console, compared)
    if compared.ended:
        console.print(Text("\nended differently", style="yellow"))
    _list(console, [f"{a['cell']}: {_ending(a)} -> {_ending(b)}" for a, b in compared.ended])
    for title, text in caveats(compared).items():
        console.print(Text.assemble((f"\n{title}. ", "bold"), plain(text)))
    if compared.changes:
        console.print("", answer, sep="\n")


def _show_changes(console: Console, compared: RunComparison) -> None:
    _list(console, [f"{each.name}: {each.a} -> {each.b}" for each in compared.differences])
    console.print(plain(APART, "dim"))
    margin = numbers.percent(compared.margin)
    console.print(Text(f"\nB over A (95 %), margin {margin}", style="bold"))
    for block in blocks(compared):
        terminal.show(console, replace(block, columns=SHORT, facts=()), changes=True)


def _list(console: Console, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        console.print(plain(f"  {line}"))
    if len(lines) > SHOWN:
        console.print(f"  and {len(lines) - SHOWN} more")


ALIKE = (
    "Both runs have the same machine, versions, environment variables, commit, files and options."
)

APART = (
    "The two runs were not measured side by side. Step times also differ by any drift of the host "
    "between them, so their intervals are wide: identical programs that ran one after the other "
    f"differed by {numbers.percent(UNPAIRED_SD)} (standard deviation). Where both runs have the "
    "same baseline, the ratios to it are compared instead, from which such a drift cancels."
)
"""Why a comparison of two runs is less certain than a ratio within one."""


def setting(compared: RunComparison) -> str:
    """Name everything that differs between the runs, in a sentence."""
    verbatim = ("versions", "environment")  # packages and variables
    names = [
        each.name if each.kind in verbatim else each.name.lower() for each in compared.differences
    ]
    names += [f"files of {name}" for name in other_files(compared.a, compared.b)]
    return f"These differ: {listing(names)}." if names else ALIKE


def tally(compared: RunComparison) -> str:
    """Count cells by verdict, and those without a counterpart."""
    said = verdicts((c.verdict.word, c.verdict.low, c.verdict.high) for c in compared.changes)
    changed = numbers.count(len(compared.changes), "cell")
    sentences = [f"B against A, {changed}: {said}." if said else "No cell has a time in both runs."]
    if compared.ended:
        sentences.append(f"{numbers.count(len(compared.ended), 'cell')} ended differently.")
    if parts := [f"{len(cells)} only in {run}" for run, cells in compared.only.items() if cells]:
        sentences.append(f"{listing(parts)}.")
    return " ".join(sentences)


def caveats(compared: RunComparison) -> dict[str, str]:
    """Return reasons in both runs' rows to read the changes with care."""
    said = {
        "Damaged files in A": damage(compared.a.damaged),
        "Damaged files in B": damage(compared.b.damaged),
    }
    if compared.changes:
        _of_changes(said, compared)
    return {title: text for title, text in said.items() if text}


def _of_changes(said: dict[str, str], compared: RunComparison) -> None:
    changes = compared.changes
    kinds = dict.fromkeys(each.kind for each in compared.differences)
    if other := [kind for kind in kinds if kind not in ("code", "options")]:
        said["More than the code differs"] = (
            f"A change may come from the {listing(other)} instead of the code. This holds for "
            "changes against the baseline too, because what slows one implementation need not slow "
            "all of them equally."
        )
    runs = ("A", compared.a), ("B", compared.b)
    if dirty := [name for name, run in runs if run.manifest["git"]["dirty"]]:
        said["Uncommitted changes"] = (
            f"The working tree of {listing(dirty)} had uncommitted changes, so the code may differ "
            "in more than the commits do."
        )
    if any(change.source == "baseline" for change in changes):
        baselines = {(one.name, one.baseline) for one, _ in compared.blocks}
        steps = [c.step.value for c in changes if (c.block, c.implementation) in baselines]
        times = f" Its step times in B are {ends(steps)} times those in A." if steps else ""
        said["Cannot detect a change of the baseline"] = (
            "A ratio to the baseline cannot show how the baseline itself changed. If it alone "
            f"changed, every other implementation appears to have changed instead.{times}"
        )
    # An unknown number is NaN, for which the comparison with 0 is false.
    if blocks := {c.block for c in changes if abs(c.b["model_flops"] - c.a["model_flops"]) > 0}:
        said["Not the same work"] = (
            f"A step of {listing(sorted(blocks))} has another number of model FLOPs in B than in "
            "A, so the step times measure different work."
        )
