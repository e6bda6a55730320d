"""A comparison as tables of text, ready for a page."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.analyse.ratio_intervals import floor_width
from bench.present.columns import Figure
from bench.present.comparison import comparison_sentences
from bench.present.text_tables import Row, Table
from bench.records import numbers
from bench.records.statuses import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.analyse.comparisons import Comparison
    from bench.analyse.ratio_intervals import Ratio
    from bench.analyse.run_changes import Change, Compared


@dataclass(frozen=True)
class Ending:
    """Cells that ended in one and the same way in A, and in another way in B."""

    a: str
    b: str
    cells: list[str]
    """A line a block."""


@dataclass(frozen=True)
class Missing:
    """Cells that one run alone has, because the other lacks one and the same thing."""

    run: str
    absence: str
    cells: list[str]
    """A line a block; with how a cell ended, where that is not ok."""


def blocks(found: Compared) -> list[Table]:
    """A table for every block in which cells can be compared."""
    made = []
    for one, other in found.blocks:
        changes = [change for change in found.changes if change.block == one.name]
        if changes:
            made.append(_block(one, other, changes, found))
    return made


def _block(one: Comparison, other: Comparison, changes: Sequence[Change], found: Compared) -> Table:
    columns = {
        Figure("Step time", "A, B"): _times,
        Figure("B over A", "not paired, 95 %"): _step,
        Figure("To baseline", "A, B"): _to_baseline,
        Figure("B over A", "of the ratio, 95 %"): _against_baseline,
        Figure("Verdict", f"margin {numbers.percent(found.margin)}"): _verdict,
    }
    # Most runs change neither.
    if any(change.compile for change in found.changes):
        columns[Figure("Compile", "B over A")] = _compile
    if any(change.memory for change in found.changes):
        columns[Figure("Memory", "B over A")] = _memory
    rows = []
    for change in changes:
        is_baseline = one.baseline == other.baseline == change.implementation
        figures = [made(change) for made in columns.values()]
        rows.append(Row(change.implementation, figures, "baseline" if is_baseline else ""))
    title = f"{one.subject}, {one.place}"
    facts = [_baseline(one, other), _floors(one, other)]
    return Table(title, [Figure("Implementation"), *columns], rows, facts)


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


def _times(change: Change) -> Figure:
    return Figure(", ".join(numbers.si(side.step_s, "s") for side in (change.a, change.b)))


def _step(change: Change) -> Figure:
    return _ratio(change.step)


def _to_baseline(change: Change) -> Figure:
    sides = change.a.to_baseline, change.b.to_baseline
    known = [numbers.MISSING if math.isnan(side) else numbers.ratio(side) for side in sides]
    return Figure(", ".join(known))


def _against_baseline(change: Change) -> Figure:
    against = change.against_baseline
    return Figure(numbers.MISSING) if against is None else _ratio(against)


def _verdict(change: Change) -> Figure:
    return Figure(change.verdict.word, comparison_sentences.source(change))


def _compile(change: Change) -> Figure:
    ends = numbers.seconds(change.a.compile_s), numbers.seconds(change.b.compile_s)
    return _changed(change.compile, *ends)


def _memory(change: Change) -> Figure:
    ends = numbers.bytes_(change.a.memory_bytes), numbers.bytes_(change.b.memory_bytes)
    return _changed(change.memory, *ends)


def _ratio(ratio: Ratio) -> Figure:
    note = "no interval" if ratio.low is None else numbers.interval(ratio.low, ratio.high)
    return Figure(numbers.ratio(ratio.value), note)


def _changed(ratio: float | None, a: str, b: str) -> Figure:
    return Figure("") if ratio is None else Figure(numbers.ratio(ratio), f"{a} to {b}")


def endings(found: Compared) -> list[Ending]:
    """Cells that ended differently, those with the same endings together."""
    groups: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for cell in found.ended:
        ways = _way(cell.status_a, cell.reason_a), _way(cell.status_b, cell.reason_b)
        groups[ways].append((cell.block, cell.implementation))
    return [Ending(a, b, _lines(cells)) for (a, b), cells in groups.items()]


def missing(found: Compared) -> list[Missing]:
    """Cells of one run alone, those that lack the same in the other together."""
    groups: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for run, only in (("A", found.only_a), ("B", found.only_b)):
        for cell in only:
            ended = "" if cell.status == "ok" else f" ({_way(cell.status, cell.reason)})"
            named = cell.block, f"{cell.implementation}{ended}"
            groups[run, cell.absence].append(named)
    return [Missing(*lacking, _lines(cells)) for lacking, cells in groups.items()]


def _way(status: str, reason: str) -> str:
    """How a cell ended, and why."""
    label = STATUSES[status].label
    return f"{label}: {reason}" if reason else label


def _lines(cells: Iterable[tuple[str, str]]) -> list[str]:
    """`block: implementation, implementation`."""
    blocks: defaultdict[str, list[str]] = defaultdict(list)
    for block, implementation in cells:
        blocks[block].append(implementation)
    return [f"{block}: {', '.join(names)}" for block, names in blocks.items()]
