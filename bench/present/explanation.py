"""The difference between two cells of a run: a sentence and tables on the terminal, and CSV."""

import math
from collections.abc import Iterable

import pandas as pd
from rich.console import Console
from rich.table import Column
from rich.text import Text

from bench.analyse import phase_costs
from bench.analyse.causes import Attribution, Cause, parts
from bench.analyse.cell_table import Tables
from bench.analyse.same_programs import differences, relation
from bench.present import bounds, phase_tables, program_sentences
from bench.present.cell_columns import collectives, framework
from bench.present.charts import PARTS
from bench.present.columns import formatted
from bench.present.terminal import plain, table
from bench.present.trace_tables import only_one_transposes, operation_name, reason
from bench.records import numbers
from bench.records.step_programs import StepProgram, unpacked

_ROWS = 10
"""The number of causes, largest first, that fit on a screen; the others share a row."""

_COLUMNS = (
    "a", "b", "timed_ratio", "untraced_ratio", "explained", "what", "source", "sizes", "a_ops",
    "b_ops", "a_transposes", "b_transposes", "a_s", "b_s", "difference_s",
)  # fmt: skip


def causes_frame(pairs: Iterable[Attribution]) -> pd.DataFrame:
    """Return one row per cause of a difference between cells `a` and `b`.

    `timed_ratio` is from the rounds, `untraced_ratio` from the steps just before the traced ones,
    and `explained` is the share of the latter that all causes but idle time add up to. `a_ops`
    and `b_ops` are HLO instructions, `a_transposes` is whether any of them changes an array's
    layout, and `a_s`, `b_s` and `difference_s` are seconds per traced step.
    """
    rows = [
        (
            *(found.a, found.b, found.timed, found.untraced, found.explained),
            *(operation_name(one.key), one.key.source, " ".join(one.key.sizes)),
            *(" ".join(one.a.ops), " ".join(one.b.ops), one.a.transposes, one.b.transposes),
            *(one.a.seconds, one.b.seconds, one.difference),
        )
        for found in pairs
        for one in found.causes
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def show(
    console: Console, found: Attribution, run: str, *, every: bool = False, same: bool = False
) -> None:
    """Print why A takes longer than B, and a table of ten causes, or of `every` cause.

    The sentence names no cause where both are proved to be the `same`.
    """
    gap = found.traced_a - found.traced_b
    shown = table("What", "Where", ">A", ">B", ">A - B", ">Share")
    most = len(found.causes) if every else _ROWS
    for cause in found.causes[:most]:
        figures = _figures(cause.a.seconds, cause.b.seconds, gap)
        shown.add_row(_what(cause), Text(cause.key.source), *figures)
    if rest := found.causes[most:]:
        a, b = sum(cause.a.seconds for cause in rest), sum(cause.b.seconds for cause in rest)
        others = numbers.count(len(rest), "other")
        shown.add_row(others, "", *_figures(a, b, gap))
    whole = _figures(found.traced_a, found.traced_b, gap)
    shown.add_row("step, as traced", "", *whole, style="bold")
    caption = (
        f"A is {found.a}, B is {found.b}, both from the run {run}. The columns are times per step "
        "and device while the profiler was recording."
    )
    chance = "What differs between their traces is noise, or comes from memory placement."
    said = plain(chance if same else reason(found).sentence)
    console.print(said, "", shown, "", plain(caption, "dim"))


def show_programs(
    console: Console, cells: tuple[str, str], programs: tuple[StepProgram, StepProgram]
) -> None:
    """Print the relation of two cells' programs, and by source line how unequal ones differ."""
    found = relation(*programs)
    console.print(plain(program_sentences.describe_relation(*cells, found)))
    a, b = (unpacked(program["operations"]) for program in programs)
    if found in ("same", "dispatch"):
        return  # equal operations may come from other lines
    if rows := [*program_sentences.shown(differences(a, b))]:
        where = Column("Where", no_wrap=True)
        console.print(table(where, "Only in the first", "Only in the second", rows=rows))
    elif found == "different":
        console.print(
            "Their operations are the same, so they differ in the order or connections of "
            "operations, in constants, in donation, or in the devices of a process."
        )


def show_times(console: Console, cells: tuple[str, str], found: Tables) -> None:
    """Print the ratio of two cells that ran side by side, and the shares of their ablated parts.

    The ratio's interval holds for all pairs of arms of the block simultaneously. The ratio of
    traced steps that were timed singly is left to the sentence on their causes.
    """
    for block in found.comparisons:
        arm, other = (cell.removeprefix(f"{block.name}/") for cell in cells)
        claim = block.claim_of(arm, other)
        if block.span_steps == (1,) and found.traces.keys() >= {*cells}:
            continue
        if claim is not None and claim.ratio.paired:
            low, high = claim.verdict.low, claim.verdict.high
            side = " more" if low > 1 else " less" if high < 1 else ""
            sure = f" (surely {bounds.sure(low, high)}{side})"
            known = sure if math.isfinite(bounds.bound_of(low, high)) else ""
            took = f"{arm} took {numbers.ratio(claim.ratio.value)} times as long as {other}"
            console.print(plain(f"Side by side, {took}{known}."))
    for row in phase_costs.find(found.comparisons):
        if row["cell"] in cells and (said := phase_tables.ablation_sentence(row)):
            console.print(plain(said))


def show_parts(console: Console, cells: tuple[str, str], found: Tables) -> None:
    """Print what is known of two steps, at least one of which runs in its own process."""
    console.print("Steps that run in separate processes are not traced; only the worker is.")
    known = {row["cell"]: row for row in found.rows}
    for cell in cells:
        foreign = known[cell]["foreign"]
        what = framework(foreign) if foreign else collectives(known[cell])
        console.print(plain(f"{cell}: {what or 'no collective'}."))
        if trace := found.traces.get(cell):
            spent = parts(trace)
            total = spent["total"]
            console.print(
                f"\nA step of {cell} takes {numbers.si(total, 's')} as traced, the mean over its "
                "devices:"
            )
            rows = [
                (PARTS[part][0], numbers.si(spent[part], "s"), numbers.percent(spent[part] / total))
                for part in sorted(PARTS, key=lambda part: -spent[part])
                if spent[part]
            ]
            console.print(table("Part", ">Time", ">Share", rows=rows))


def _what(cause: Cause) -> Text:
    text = Text(operation_name(cause.key))
    ops = cause.a.ops or cause.b.ops
    if ops and cause.key.category != "wait":
        text.append(f" {ops[0]}" + (f" and {len(ops) - 1} more" if ops[1:] else ""), style="dim")
    if cause.key.category not in {"collective", "control"}:
        text.append(f" {' '.join(cause.key.sizes)}", style="dim")
    if side := only_one_transposes(cause):
        text.append(f" (transposes in {side.upper()} only)", style="yellow")
    elif bool(cause.a.ops) != bool(cause.b.ops):
        text.append(f" (in {'A' if cause.a.ops else 'B'} only)")
    return text


def _figures(a: float, b: float, gap: float) -> list[str]:
    """Return the seconds of both, their difference, and its share of the whole difference."""
    return [
        formatted(a or None, "s"),
        formatted(b or None, "s"),
        formatted(a - b, "+s"),
        numbers.percent((a - b) / gap) if gap else numbers.MISSING,
    ]
