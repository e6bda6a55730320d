"""Tables of a comparison of two runs."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import Ratio, floor_width
from bench.analyse.run_changes import Change, Compared, Row, compile_s
from bench.present.bounds import sure
from bench.present.columns import Column, Figure, Table, between, formatted
from bench.records import numbers
from bench.records.statuses import STATUSES


def ratio_figure(ratio: Ratio | None) -> Figure | None:
    """Return a ratio with its interval."""
    if ratio is None:
        return None
    interval = between(ratio.low, ratio.high, "ratio") or "no interval"
    return Figure(numbers.ratio(ratio.value), interval)


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
    "cells",
    "Cells",
    value=lambda group: Figure(numbers.count(group.number, "cell"), "; ".join(group.cells)),
)


def blocks(compared: Compared) -> list[Table]:
    """Return a table for every block with cells that can be compared."""
    tables = []
    for one, other in compared.blocks:
        changes = [change for change in compared.changes if change.block == one.name]
        if changes:
            facts = [_baseline(one, other), _floors(one, other)]
            tables.append(Table(f"{one.subject}, {one.place}", CHANGES, changes, facts))
    return tables


def _baseline(one: Comparison, other: Comparison) -> str:
    if one.baseline == other.baseline:
        return f"Baseline in both: {one.baseline}."
    return f"Baselines differ: {one.baseline or 'none'} in A, {other.baseline or 'none'} in B."


def _floors(one: Comparison, other: Comparison) -> str:
    widths = [
        "unknown" if floor is None else f"up to {numbers.percent(floor_width(floor))}"
        for floor in (one.floor, other.floor)
    ]
    return f"Noise floor of the ratios to the baseline: {widths[0]} in A, {widths[1]} in B."


def endings(compared: Compared) -> list[Group]:
    """Group the cells that ended differently by how they ended."""
    groups: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for a, b in compared.ended:
        groups[_ending(a), _ending(b)].append((a["block"], a["implementation"]))
    return [Group(a, b, len(cells), _lines(cells)) for (a, b), cells in groups.items()]


def missing(compared: Compared) -> list[Group]:
    """Group the cells of only one run by what the other lacks."""
    return [
        Group(run, absence, len(cells), _lines((cell["block"], _named(cell)) for cell in cells))
        for (run, absence), cells in compared.only.items()
    ]


def _named(cell: Row) -> str:
    """Return a cell's implementation, and how the cell ended if that is not ok."""
    ended = "" if cell["status"] == "ok" else f" ({_ending(cell)})"
    return f"{cell['implementation']}{ended}"


def _ending(cell: Row) -> str:
    label = STATUSES[cell["status"]].label
    return f"{label}: {cell['reason']}" if cell["reason"] else label


def _lines(cells: Iterable[tuple[str, str]]) -> list[str]:
    """List implementations by block, one line each."""
    blocks: defaultdict[str, list[str]] = defaultdict(list)
    for block, implementation in cells:
        blocks[block].append(implementation)
    return [f"{block}: {', '.join(names)}" for block, names in blocks.items()]
