"""Sentences about arms with equal programs, and about the differences between two programs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.analyse import same_programs
from bench.analyse.comparisons import Comparison
from bench.analyse.same_programs import LineDifference, Relation, relation
from bench.present.columns import formatted
from bench.present.sentences import listing
from bench.records import numbers
from bench.records.grouping import grouped
from bench.records.step_programs import Operation, StepProgram, unpacked

MOST_LINES = 12
"""Limit on the source lines of a difference between two programs that are shown."""

_MOST_OPERATIONS = 3

_MOST_CHANGES = 3

_NOTICED = 0.02
"""Relative difference of a figure above which a sentence mentions it."""

_FIGURES = (
    ("memory_bytes", "memory", "bytes"),
    ("compiled_flops", "compiled FLOPs", "si"),
    ("wire_bytes", "sent bytes", "bytes"),
    ("compile_s", "compile time", "s"),
)
"""Columns of a cell whose differences sentences mention, with their words and formats."""

_TOLD: dict[Relation, str] = {
    "same": "are proved to be the same: equal programs, dispatched in the same way",
    "dispatch": "run the same program, so only its dispatch can make a difference",
    "different": "run different programs",
    "unknown": "may or may not run the same program: this could not be determined",
}


def facts(block: Comparison) -> Iterator[str]:
    """Yield a sentence for each program that several arms of a block share."""
    programs = grouped((cell["fingerprint"], cell) for cell in block.ranked if cell["fingerprint"])
    for cells in (cells for cells in programs.values() if len(cells) > 1):
        names = listing(cell["implementation"] for cell in cells)
        if all(relation(cells[0], other) == "same" for other in cells[1:]):
            yield f"{names} {_TOLD['same']}."
        else:
            calls = ", ".join(f"{c['implementation']} {int(c['host_calls'])}" for c in cells)
            yield f"{names} {_TOLD['dispatch']}. Functions that the host calls in a step: {calls}."


def caveat(blocks: Iterable[Comparison]) -> str:
    """Describe where times contradict a proof that two arms are the same; empty if nowhere."""
    found = [str(cell["cell"]) for block in blocks for cell in same_programs.contradicted(block)]
    if not found:
        return ""
    return (
        f"By their times, {listing(found)} would differ from the baseline, but the program and its "
        "dispatch are the same: the difference is noise, or comes from memory placement."
    )


def describe_relation(a: str, b: str, found: Relation) -> str:
    """Describe in a sentence how the programs of two cells are related."""
    return f"{a} and {b} {_TOLD[found]}."


def shown(differences: Sequence[LineDifference]) -> Iterator[tuple[str, str, str]]:
    """Yield where two programs differ most: source line, operations only in A, and only in B."""
    for line in differences[:MOST_LINES]:
        yield line.source or "unknown", _operations(line.a), _operations(line.b)
    if rest := differences[MOST_LINES:]:
        a = sum(one.runs for line in rest for one in line.a)
        b = sum(one.runs for line in rest for one in line.b)
        yield numbers.count(len(rest), "other line"), f"{a} operations", f"{b} operations"


def changes(
    rows: Sequence[Mapping[Any, Any]], word: str, programs: Mapping[str, StepProgram]
) -> Iterator[str]:
    """Yield the figures in which a cell differs from another, and the most different source lines.

    Nothing is yielded for cells that are proved to be the same. `rows` are two rows of
    Tables.cells: the cell's own, and that of the other cell, which sentences call `word`.
    `programs` are by cell.
    """
    new, old = rows
    if (found := relation(new, old)) == "same":
        return
    for column, words, format_ in _FIGURES:
        one, other = new[column], old[column]
        if other and abs(one / other - 1) > _NOTICED:  # not where either is NaN
            yield f"{words}: {formatted(one, format_)}, {word} {formatted(other, format_)}"
    if found != "dispatch" and {new["cell"], old["cell"]} <= programs.keys():
        known = (unpacked(programs[row["cell"]]["operations"]) for row in rows)
        for where, one, other in shown(same_programs.differences(*known)[:_MOST_CHANGES]):
            yield f"{where}: {one or 'nothing'}; {word}: {other or 'nothing'}"


def _operations(found: Sequence[Operation]) -> str:
    """Return `2 dot f32[8,16]{1,0}, 1 copy f32[16]{0}`, most bytes first, without comments."""
    largest = sorted(found, key=lambda one: -one.runs * one.bytes)
    parts = [
        re.sub(r"/\*.*?\*/", "", f"{one.runs} {one.opcode} {one.result}")
        for one in largest[:_MOST_OPERATIONS]
    ]
    more = sum(one.runs for one in largest[_MOST_OPERATIONS:])
    return ", ".join([*parts, f"{more} more"] if more else parts)
