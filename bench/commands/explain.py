"""`python -m bench explain CELL_A CELL_B`: why A's step takes another time. Imports no jax."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from rich import box
from rich.table import Table
from rich.text import Text

from bench.analyse import cell_table
from bench.analyse.causes.attribution import Attribution, attribute
from bench.plan.matrix import BadInput
from bench.present.cause_sentences import called, only_one_transposes, reason, signed
from bench.present.cause_table import cause_rows
from bench.records import numbers, store
from bench.records.paths import REPORTS

if TYPE_CHECKING:
    from rich.console import Console

    from bench.analyse.causes.attribution import Cause
    from bench.records.rows import TraceRow
    from bench.records.store import Run

_WORTH_A_ROW = 0.01
"""Share of the difference, or of a hundredth of the step, below which causes share one row."""


@dataclass(frozen=True)
class Explanation:
    """Why two cells of a stored run differ."""

    run: str
    a: str
    b: str
    attribution: Attribution
    timed_ratio: float
    """Latency of A over that of B: like a traced step, one that is waited for."""

    @property
    def sentence(self) -> str:
        """The answer."""
        block, _, one = self.a.rpartition("/")
        other_block, _, other = self.b.rpartition("/")
        names = (one, other) if block == other_block else (self.a, self.b)
        return reason(*names, self.attribution, self.timed_ratio).sentence


def explain(a: str, b: str, found: Run) -> tuple[Explanation, Path]:
    """Compare what the traces of two cells showed; writes the causes as CSV and Parquet.

    Args:
      a: name of a cell, such as `mlp-base/data=2/b512/fp32/jit_spmd`.
      b: name of another.
      found: a stored run.

    Returns:
      The explanation, and the CSV file: `explain_<a>_<b>.csv` in the run's folder.

    Raises:
      BadInput: it is one and the same cell, or the run has no trace or no time of one of them.
    """
    if a == b:
        raise BadInput(["name two different cells"])
    traces = {row["cell"]: row for row in found.traces}
    faults = [_no_trace(name, found, traces) for name in (a, b) if name not in traces]
    if faults:
        raise BadInput(faults)
    latency = cell_table.build(found).cells.set_index("cell")["latency_s"]
    timed_ratio = float(latency[a] / latency[b])
    if not math.isfinite(timed_ratio):
        raise BadInput([f"{a if math.isnan(latency[a]) else b} has no time in {found.directory}"])
    explanation = Explanation(
        found.directory.name, a, b, attribute(traces[a], traces[b]), timed_ratio
    )
    name = "_".join(["explain", *(re.sub(r"[^\w.,=-]", "-", cell) for cell in (a, b))])
    rows = cause_rows(a, b, explanation.attribution, timed_ratio)
    store.export(pd.DataFrame(rows), found.directory, name)
    return explanation, found.directory / f"{name}.csv"


def newest(a: str, b: str) -> Run:
    """The newest stored run with traces of both cells.

    Raises:
      BadInput: there is none.
    """
    folders = [path.parent for path in REPORTS.glob(f"*/{store.TRACES}")]
    folders.sort(key=lambda folder: (folder / store.TRACES).stat().st_mtime, reverse=True)
    known: dict[str, None] = {}
    for folder in folders:
        try:
            run = store.load(folder)
        except store.StoreError:  # of another version, perhaps; the next may do
            continue
        cells = [row["cell"] for row in run.traces]
        if {a, b} <= set(cells):
            return run
        known |= dict.fromkeys(cells)
    if not known:
        raise BadInput([f"no run in {REPORTS}/ has traces; record some: nox -s bench -- --profile"])
    missing = [name for name in (a, b) if name not in known]
    if not missing:
        raise BadInput([f"no run in {REPORTS}/ has traces of both; cells of one run share an hour"])
    listed = ", ".join(sorted(known))
    raise BadInput(
        [f"no run in {REPORTS}/ has a trace of {name}; there are {listed}" for name in missing]
    )


def _no_trace(name: str, run: Run, traces: dict[str, TraceRow]) -> str:
    if name in set(run.cells["cell"]):
        return f"{name} has no trace in {run.directory}; record it with --profile"
    return f"there is no cell {name} in {run.directory}; with traces: {', '.join(sorted(traces))}"


def show(console: Console, found: Explanation) -> None:
    """Print the sentence and the table of causes."""
    console.print(Text(found.sentence))
    attribution = found.attribution
    gap = attribution.traced_a - attribution.traced_b
    worth = _WORTH_A_ROW * max(abs(gap), _WORTH_A_ROW * attribution.traced_b)
    table = Table(box=box.SIMPLE, caption=Text(_caption(found)), caption_justify="left")
    table.add_column("What", overflow="fold")
    table.add_column("Where", overflow="fold")
    for heading in ("A", "B", "A - B", "of it"):
        table.add_column(heading, justify="right", no_wrap=True)
    rest: list[Cause] = []
    for cause in attribution.causes:
        if cause.key.category != "idle" and abs(cause.difference) < worth:
            rest.append(cause)
            continue
        figures = _figures(cause.a.seconds, cause.b.seconds, gap)
        table.add_row(_what(cause), Text(cause.key.source), *figures)
    if rest:
        a, b = sum(one.a.seconds for one in rest), sum(one.b.seconds for one in rest)
        table.add_row(f"{len(rest)} others", "", *_figures(a, b, gap))
    whole = _figures(attribution.traced_a, attribution.traced_b, gap)
    table.add_row("step, as traced", "", *whole, style="bold")
    console.print(table)


def _what(cause: Cause) -> Text:
    text = Text(called(cause.key))
    ops = cause.a.ops or cause.b.ops
    if ops and cause.key.category != "wait":
        text.append(f" {ops[0]}" + (f" and {len(ops) - 1} more" if ops[1:] else ""), style="dim")
    if cause.key.category not in {"collective", "control"}:
        text.append(f" {' '.join(cause.key.sizes)}", style="dim")
    side = only_one_transposes(cause)
    if side:
        text.append(f" (transposes in {side.upper()} only)", style="yellow")
    elif bool(cause.a.ops) != bool(cause.b.ops):
        text.append(f" (in {'A' if cause.a.ops else 'B'} only)")
    return text


def _figures(a: float, b: float, gap: float) -> list[str]:
    """Seconds of both, their difference, and its share of the whole difference."""
    return [
        numbers.si(a, "s") if a else numbers.MISSING,
        numbers.si(b, "s") if b else numbers.MISSING,
        signed(a - b),
        numbers.percent((a - b) / gap) if gap else numbers.MISSING,
    ]


def _caption(found: Explanation) -> str:
    attribution = found.attribution
    ratios = (attribution.gap, attribution.untraced - 1, found.timed_ratio - 1)
    traced, untraced, timed = map(numbers.percent, ratios)
    return (
        f"A is {found.a}, B is {found.b}, of the run {found.run}. Seconds a step and device, as "
        f"traced, where A takes {traced} more than B; {untraced} just before, without a profiler, "
        f"and {timed} in the rounds that were timed."
    )
