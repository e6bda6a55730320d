"""Tables of where traced steps spend their time, and of why one takes longer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from bench.analyse.causes.attribution import (
    Attribution,
    means,
    oversubscription,
    stragglers,
)
from bench.analyse.causes.traced_differences import Difference, baseline_cell, pair_of, parts
from bench.present.cause_sentences import (
    Reason,
    called,
    only_one_transposes,
    reason,
    signed_percent,
)
from bench.present.cause_table import CauseRow, cause_rows
from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bench.analyse.causes.attribution import Cause
    from bench.analyse.comparisons import Comparison
    from bench.records.rows import TraceRow

_MOST_CAUSES = 12


_MOST_SIZES = 3
"""Of a table of causes: largest ones, and sizes of each; causes.csv has them all."""


TENSORBOARD = "http://localhost:6006"
"""Where `nox -s tensorboard` serves traces unless told otherwise."""


def breakdown(
    block: Comparison, traces: Mapping[str, TraceRow], said: Iterable[Reason] = ()
) -> Table | None:
    """Where the steps of a block's cells spend their time; None where none was traced.

    Args:
      block: the comparison.
      traces: by cell.
      said: why implementations differ, for below the table.
    """
    shown = [cell for cell in block.ranked if cell["cell"] in traces]
    if not shown:
        return None
    others = any(
        op["category"] == "unknown" for cell in shown for op in traces[cell["cell"]]["ops"]
    )
    rows = [_row(cell, traces[cell["cell"]], others=others) for cell in shown]
    headings = [
        Figure("Implementation"),
        Figure("Traced step", "waited for"),
        Figure("Dispatch", "no launch or inputs yet"),
        Figure("Matrix products"),
        Figure("Elementwise", "and reductions"),
        Figure("Layout", "copies"),
        *([Figure("Unknown", "of other programs")] if others else []),
        Figure("Waiting", "in collectives"),
        Figure("Moving data", "in collectives"),
        Figure("Idle"),
        Figure("Overlap", "collective beside compute"),
        Figure("Slowest device", "computing, over the mean"),
    ]
    meaning = (
        "Means over devices and over the traced steps of median length. The parts but the overlap "
        "add up to the step."
    )
    facts = [meaning]
    factors = [oversubscription(traces[cell["cell"]]) for cell in shown]
    shared = max((factor for factor in factors if factor is not None), default=0.0)
    if shared > 1:
        facts.append(
            f"Devices worked {numbers.significant(shared)} times as long as the cores could: "
            "part of it is waiting for a core."
        )
    remarks = [found.sentence for found in said]
    return Table(f"Where a step's time goes, {block.place}", headings, rows, facts, remarks)


def _row(cell: Mapping[Any, Any], trace: TraceRow, *, others: bool) -> Row:
    found = means(trace)
    shown = [seconds for part, seconds in parts(trace).items() if others or part != "unknown"]
    return Row(
        cell["implementation"],
        [
            Figure(numbers.si(found["total"], "s")),
            *(_share(seconds, found["total"]) for seconds in shown),
            _share(found["overlap"], found["total"]),
            _slowest(trace),
        ],
        trace=trace_viewer(trace),
    )


def _share(seconds: float, whole: float) -> Figure:
    if not seconds:
        return Figure(numbers.MISSING)
    return Figure(numbers.si(seconds, "s"), numbers.percent(seconds / whole))


def _slowest(trace: TraceRow) -> Figure:
    seconds = stragglers(trace)
    if len(seconds) == 1:
        return Figure(numbers.MISSING)
    place = max(seconds, key=lambda device: seconds[device])
    mean = sum(seconds.values()) / len(seconds)
    return Figure(str(place), f"+{numbers.percent(seconds[place] / mean - 1)}" if mean else "")


def reasons(found: Iterable[Difference]) -> dict[str, Reason]:
    """Why implementations are faster or slower than their baseline."""
    return {one.cell["implementation"]: _reason(one) for one in found}


def _reason(one: Difference) -> Reason:
    """Traced steps are waited for, and explain nothing that only shows where they are not."""
    cell, baseline, timed = one.cell, one.baseline, one.timed
    name = cell["implementation"]
    if (timed > 1) == (cell["verdict"] == "slower"):
        return reason(name, baseline, one.attribution, timed)
    return Reason(
        f"{name} is {cell['verdict']} than {baseline}, but not where every step is waited for, as "
        f"in traces ({signed_percent(timed - 1)} there): the difference is in what a step does "
        "while the next is launched."
    )


def against_fastest(block: Comparison, traces: Mapping[str, TraceRow]) -> dict[str, Reason]:
    """Why what is slower than the baseline is slower than the fastest, where that is another."""
    fastest = block.ranked[0]
    return {
        cell["implementation"]: reason(cell["implementation"], fastest["implementation"], *pair)
        for cell in block.ranked
        if fastest["verdict"] == "faster"
        and cell["verdict"] == "slower"
        and (pair := pair_of(cell, fastest, traces)) is not None
        and pair[1] > 1 + block.margin
    }


def cause_list(a: str, b: str, found: Attribution) -> list[list[Any]]:
    """The largest causes: what, seconds more in A, in A, in B, source, sizes and peculiarities."""
    return [
        [
            called(cause.key),
            cause.difference,
            cause.a.seconds,
            cause.b.seconds,
            cause.key.source,
            ", ".join(
                filter(None, (" ".join(cause.key.sizes[:_MOST_SIZES]), _transposing(cause, a, b)))
            ),
        ]
        for cause in found.causes[:_MOST_CAUSES]
    ]


def _transposing(cause: Cause, a: str, b: str) -> str:
    side = only_one_transposes(cause)
    return f"transposes in {a if side == 'a' else b} only" if side else ""


def trace_viewer(trace: TraceRow) -> str:
    """Address of a cell's trace in TensorBoard."""
    run = quote(trace["profile"], safe="")
    return f"{TENSORBOARD}/?run={run}&tag=trace_viewer@&host={quote(trace['host'])}#profile"


def causes_frame(blocks: Iterable[Comparison], traces: Mapping[str, TraceRow]) -> pd.DataFrame:
    """One row a cause of a difference between a cell and its baseline."""
    rows = [
        row
        for block in blocks
        for cell in block.ranked
        if (pair := pair_of(cell, baseline_cell(block), traces)) is not None
        for row in cause_rows(cell["cell"], f"{block.name}/{block.baseline}", *pair)
    ]
    return pd.DataFrame(rows, columns=list(CauseRow.__annotations__))
