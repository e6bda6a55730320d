"""Histories of cells as tables, with sparklines."""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from bench.analyse import change_points
from bench.analyse.cell_history import RESOLVED, Change, History
from bench.present import run_environment
from bench.present.columns import Column, Figure, Table, ratio_figure
from bench.records import numbers
from bench.records.grouping import grouped

ABOUT = (
    "Cells that several runs timed on the same hardware, by their ratio to a baseline that took "
    "turns with them. Step times also differ by what the host did between the runs, so they cannot "
    f"show a change below {numbers.percent(RESOLVED - 1)}. If the baseline itself becomes slower, "
    "all ratios to it fall. Change points are found by E-divisive with a permutation test, which "
    f"takes at least {change_points.fewest()} runs. In {numbers.percent(change_points.ALPHA)} of "
    "the cells that did not change, it reports one all the same."
)
"""How to read the tables."""

LEAST = 0.04
"""Least range of log ratios that a sparkline spans, so that noise does not look large."""

BARS = "▁▂▃▄▅▆▇█"
"""Values of a sparkline."""

_HASH = re.compile(r"\b([0-9a-f]{9})[0-9a-f]{7,}\b")


def tables(histories: Sequence[History]) -> list[Table]:
    """Return a table for each workload and hardware."""
    newest = ((own, run_environment.chips(own.visits[-1].run.manifest)) for own in histories)
    groups = grouped((f"{own.block.subject}, {where}", own) for own, where in newest)
    columns = (
        Column("implementation", "Implementation", detail=lambda own: own.block.place),
        Column("runs", "Runs", value=_runs),
        Column("trend", "Ratio", "oldest to newest", value=sparkline),
        Column("ratio", "Newest", "to the baseline, 95 %", "ratio", _newest),
        Column("changes", "Change points", value=_changes),
        Column("step_s", "Step time", "differs between runs", "s", _step),
    )
    return [
        Table(title, columns, own, remarks=[text for each in own for text in _remarks(each)])
        for title, own in groups.items()
    ]


def _runs(history: History) -> Figure:
    first, *_, last = (visit.run.manifest["started_at"][:10] for visit in history.visits)
    return Figure(str(len(history.visits)), first if first == last else f"{first} to {last}")


def _newest(history: History) -> Figure | None:
    if history.implementation == history.baseline:
        return Figure("baseline")
    rated = history.rated
    return ratio_figure(rated[-1][1], f"to {history.baseline}") if rated else None


def _step(history: History) -> Figure:
    times = [visit.step_s for visit in history.visits]
    ends = numbers.range_si(min(times), max(times), "s")
    return Figure(numbers.si(times[-1], "s"), f"{ends} in all runs")


def _changes(history: History) -> str | None:
    fewest, known = change_points.fewest(), len(history.rated)
    if known < fewest:
        return f"too few runs: {known} of {fewest}" if known else None
    return ", ".join(_start(history, change) for change in history.changes) or "none"


def _remarks(history: History) -> Iterator[str]:
    for change in history.changes:
        recorded = (f"{each.name} {each.a} to {each.b}" for each in change.differences)
        changed = "; ".join([*recorded, *(f"files of {name}" for name in change.files)])
        changed = _HASH.sub(r"\1", changed) or "nothing that is recorded"
        yield (
            f"{history.implementation}, {history.block.place}: from {_start(history, change)} on, "
            f"the ratio is {numbers.ratio(change.factor)} times what it was. Changed with it: "
            f"{changed}."
        )


def _start(history: History, change: Change) -> str:
    return run_environment.started(history.rated[change.place][0].run.manifest)


def sparkline(history: History) -> Figure | None:
    """Return the ratios as bars of text, and the first and the last of them."""
    rated = [ratio.value for _, ratio in history.rated]
    if len(rated) < 2:  # noqa: PLR2004 (one bar shows no trend)
        return None
    logs = np.log(rated)
    shares = 0.5 + (logs - (logs.min() + logs.max()) / 2) / max(np.ptp(logs), LEAST)
    places = (shares * len(BARS)).astype(int).clip(max=len(BARS) - 1)
    bars = "".join(BARS[place] for place in places)
    return Figure(bars, f"{numbers.ratio(rated[0])} to {numbers.ratio(rated[-1])}")
