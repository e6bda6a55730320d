"""What traces explain: sentences on why one step takes longer than another, and tables."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from bench.analyse.causes import Attribution, Cause, Key, from_baseline, parts
from bench.analyse.comparisons import Comparison
from bench.present.bounds import TWICE
from bench.present.charts import PARTS
from bench.present.columns import Column, Table, formatted
from bench.records import numbers
from bench.records.grouping import grouped
from bench.records.trace_rows import TraceRow

_CATEGORIES = {
    "matmul": "matrix products",
    "elementwise": "elementwise operations",
    "layout": "copies and transpositions",
    "callback": "functions of the host",
    "control": "loops and branches themselves",
    "unknown": "operations of unknown programs",
    "dispatch": "waiting for a launch or its inputs",
    "wait": "waiting for other devices in collectives",
    "idle": "idle",
}
_PHASES = {
    "forward": " in the forward pass",
    "backward": " in the backward pass",
    "recomputed": " recomputed",
    "update": " in the update",
    "other": " outside passes and update",
}
_MOST = 3
"""Limit on the causes that a sentence names, of those in the direction of the difference."""

_WORTH_NAMING = 0.05
"""Least share of the difference at which a cause is named; twice that in the other direction."""


@dataclass(frozen=True)
class Reason:
    """Why a step of cell A takes more or less time than a step of cell B."""

    sentence: str
    main: str = ""
    """The main cause in a few words; empty if the traces do not show the difference."""
    seconds: float = 0.0
    """Seconds by which the main cause takes longer in A."""


def reason(found: Attribution) -> Reason:
    """Put an attribution of A's and B's traces into words."""
    (a, b), share = found.names, found.explained
    agree = (found.untraced > 1) == (found.timed > 1) and 0 < share < 2  # noqa: PLR2004 - twice
    start = f"With a wait after every step, {a} takes {time_ratio(found.timed, b)}"
    # A theme is what operations do, and which side transposes.
    busy = (cause for cause in found.causes if cause.key.category != "idle")
    alike = grouped(((operation_name(c.key), c.key.phase, only_one_transposes(c)), c) for c in busy)
    themes = sorted(alike.values(), key=lambda theme: -abs(_sum(theme)))
    parts = [(theme, _sum(theme) / found.whole if agree else 0.0) for theme in themes]
    along = [theme for theme, part in parts if part >= _WORTH_NAMING][:_MOST]
    against = [theme for theme, part in parts if part <= -2 * _WORTH_NAMING][:1]
    before = time_ratio(found.untraced)
    if not along:
        traced = time_ratio(found.traced_a / found.traced_b)
        text = f"it took {before} just before tracing, {traced} traced"
        return Reason(f"{start}, but the traces do not show why ({text}).")
    count = "cause" if len(along) == 1 else "causes"
    text = f"{start}. The main {count}: {'; '.join(_phrase(a, b, theme) for theme in along)}."
    if against:
        text += f" This is partly offset by {_phrase(a, b, against[0])}."
    text += (
        f" Together with all smaller causes, this adds up to {numbers.percent(round(share, 3))} of "
        f"the difference just before tracing, when {a} took {before}."
    )
    first = along[0][0]
    main = operation_name(first.key) + (" that transpose" if only_one_transposes(first) else "")
    return Reason(text, main, _sum(along[0]))


def time_ratio(times: float, whom: str = "") -> str:
    """Return `2.33 times as long as whom` or `12.3 % more time than whom`; `whom` may be empty."""
    if times >= TWICE:
        return f"{numbers.significant(times)} times as long{whom and ' as ' + whom}"
    more = "more" if times > 1 else "less"
    return f"{numbers.percent(abs(times - 1))} {more} time{whom and ' than ' + whom}"


def operation_name(key: Key) -> str:
    """Name the operations of a key: `matrix products in the backward pass`."""
    if key.category == "collective":
        return f"moving data in {key.sizes[0]}s"
    return _CATEGORIES[key.category] + _PHASES.get(key.phase, "")


def only_one_transposes(cause: Cause) -> str:
    """Return the only side, `a` or `b`, with operations that change the layout; else empty.

    Also empty if only one side has operations at all.
    """
    if not (cause.a.ops and cause.b.ops) or cause.a.transposes == cause.b.transposes:
        return ""
    return "a" if cause.a.transposes else "b"


def _sum(causes: Iterable[Cause]) -> float:
    return sum(cause.difference for cause in causes)


def _phrase(a: str, b: str, causes: list[Cause]) -> str:
    text = operation_name(causes[0].key)
    if side := only_one_transposes(causes[0]):
        one, other = (a, b) if side == "a" else (b, a)
        text += f", which transpose in {one} but not in {other}"
    largest = sorted(causes, key=lambda cause: -abs(cause.difference))[:2]
    ops = [(cause.a.ops or cause.b.ops)[:1] for cause in largest]
    named = " and ".join(op for own in ops for op in own)
    where = _places(list(dict.fromkeys(c.key.source for c in largest if c.key.source)))
    return f"{text} ({formatted(_sum(causes), '+s')}{f', {named}' if named else ''}{where})"


def _places(sources: list[str]) -> str:
    """Return ` at transform.py:283 and :290`: a repeated file is named once."""
    if not sources:
        return ""
    first, *others = sources
    file = first.rpartition(":")[0]
    return f" at {' and '.join([first, *(other.removeprefix(file) for other in others)])}"


def breakdown(block: Comparison, traces: Mapping[str, TraceRow]) -> Table:
    """Return the breakdown of the steps of a block's cells, with reasons for differences below."""
    traced = {c["implementation"]: traces[c["cell"]] for c in block.ranked if c["cell"] in traces}
    columns = [
        Column("implementation", "Implementation"),
        Column("total", "Traced step", "waited for", "s"),
        *(
            Column(part, label.capitalize(), note, "s", detail=_share(part),
                   optional=part in {"callback", "unknown"})
            for part, (label, _, note) in PARTS.items()
        ),
        Column("overlap", "Overlap", "collective beside compute", "s", detail=_share("overlap")),
    ]  # fmt: skip
    rows = [
        {"implementation": name} | {part: seconds or None for part, seconds in parts(trace).items()}
        for name, trace in traced.items()
    ]
    meaning = (
        "Means over devices and over the traced steps of median length. The parts except the "
        "overlap add up to the step."
    )
    # Of the others, the page and `explain` say that the traces do not show why.
    remarks = [found.sentence for found in reasons(block, traces).values() if found.main]
    return Table("Where a step's time goes", columns, rows, [meaning], remarks)


def _share(part: str) -> Any:
    return lambda row: numbers.percent(row[part] / row["total"]) if row[part] else ""


def reasons(block: Comparison, traces: Mapping[str, TraceRow]) -> dict[str, Reason]:
    """Return why implementations are faster or slower than their baseline, as far as traced."""
    return {
        cell["implementation"]: _reason(cell["verdict"], found)
        for cell, found in from_baseline(block, traces)
        if cell["verdict"] in {"faster", "slower"}
    }


def _reason(verdict: str, found: Attribution) -> Reason:
    """Explain a difference that also appears when waiting after every step, as in traces."""
    if (found.timed > 1) == (verdict == "slower"):
        return reason(found)
    name, baseline = found.names
    return Reason(
        f"{name} is {verdict} than {baseline}, but not with a wait after every step, as in traces "
        f"({formatted(found.timed - 1, '+percent')} there): the difference arises where steps "
        "follow without a pause."
    )


def trace_viewer(trace: TraceRow) -> str:
    """Return the address of a cell's trace where `nox -s tensorboard` serves it by default."""
    run, host = quote(trace["profile"], safe=""), quote(trace["host"])
    return f"http://localhost:6006/?run={run}&tag=trace_viewer@&host={host}#profile"
