"""Histories of cells as tables, with sparklines."""

import re
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from markupsafe import Markup

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

WIDTH, HEIGHT = 120, 26
"""Size of a sparkline in pixels."""

BARS = "▁▂▃▄▅▆▇█"
"""Values of a sparkline as text."""

_HASH = re.compile(r"\b([0-9a-f]{9})[0-9a-f]{7,}\b")


def tables(histories: Sequence[History], *, markdown: bool) -> list[Table]:
    """Return a table for each workload and hardware, with sparklines as text or as SVG."""
    newest = ((own, run_environment.chips(own.visits[-1].run.manifest)) for own in histories)
    groups = grouped((f"{own.block.subject}, {where}", own) for own, where in newest)
    columns = (
        Column("implementation", "Implementation", detail=lambda own: own.block.place),
        Column("runs", "Runs", value=_runs),
        Column("trend", "Ratio", "oldest to newest", value=partial(sparkline, markdown=markdown)),
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


def sparkline(history: History, *, markdown: bool) -> Figure | None:
    """Draw a line through the ratios, with their intervals, and dots at changes and at the end."""
    rated = [ratio for _, ratio in history.rated]
    if len(rated) < 2:  # noqa: PLR2004 (one point is not a line)
        return None
    ends = np.log([(r.value, r.low or r.value, r.high or r.value) for r in rated])
    middle = (ends.min() + ends.max()) / 2
    shares = 0.5 + (ends - middle) / max(np.ptp(ends), LEAST)
    if markdown:
        places = (shares[:, 0] * len(BARS)).astype(int).clip(max=len(BARS) - 1)
        return Figure("".join(BARS[place] for place in places))
    step, heights = WIDTH / (len(rated) - 1), HEIGHT * (1 - shares)
    points = [(round(step * place, 1), *own) for place, own in enumerate(heights.round(1).tolist())]
    marked = {*(change.place for change in history.changes), len(rated) - 1}
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y, *_ in (points[at] for at in sorted(marked))
    )
    bars = "".join(f"M{x} {low}V{high}" for x, _, low, high in points)
    line = "L".join(f"{x} {y}" for x, y, *_ in points)
    said = f"{numbers.ratio(rated[0].value)} to {numbers.ratio(rated[-1].value)}"
    drawn = Markup(  # noqa: S704 (only numbers)
        f'<svg class="spark" viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 8}" role="img" '
        f'aria-label="{said}"><path class="ends" d="{bars}"/><path d="M{line}"/>{dots}</svg>'
    )
    return Figure(drawn)
