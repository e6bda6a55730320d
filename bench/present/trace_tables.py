"""Breakdown of traced steps in tables, and sentences on why one step takes longer."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from bench.analyse.causes import (
    Attribution,
    baseline_cell,
    means,
    oversubscription,
    pair_of,
    parts,
    stragglers,
)
from bench.analyse.comparisons import Comparison
from bench.present.cause_sentences import Reason, reason
from bench.present.charts import PARTS
from bench.present.columns import Column, Table, missing
from bench.records import numbers
from bench.records.trace_rows import TraceRow

TENSORBOARD = "http://localhost:6006"
"""Default address at which `nox -s tensorboard` serves traces."""

NOTES = {
    "dispatch": "no launch or inputs yet",
    "elementwise": "and reductions",
    "layout": "copies",
    "unknown": "of other programs",
    "wait": "in collectives",
    "move": "in collectives",
}
"""Qualifiers of the labels of a traced step's parts."""


def breakdown(
    block: Comparison, traces: Mapping[str, TraceRow], said: Iterable[Reason] = ()
) -> Table:
    """Return the breakdown of the steps of a block's cells; what is `said` is shown below it."""
    traced = {
        cell["implementation"]: traces[cell["cell"]]
        for cell in block.ranked
        if cell["cell"] in traces
    }
    columns = [
        Column("implementation", "Implementation"),
        Column("total", "Traced step", "waited for", "s"),
        *(
            Column(
                part, label.capitalize(), NOTES.get(part, ""), "s", _nonzero(part), _share(part),
                optional=part == "unknown",
            )
            for part, (label, *_) in PARTS.items()
        ),
        Column(
            "overlap", "Overlap", "collective beside compute", "s", _nonzero("overlap"),
            _share("overlap"),
        ),
        Column("slowest", "Slowest device", "computing, over the mean", "count", detail=_excess),
    ]  # fmt: skip
    rows = [
        {"implementation": name, **means(trace), **parts(trace), **_slowest(trace)}
        for name, trace in traced.items()
    ]
    meaning = (
        "Means over devices and over the traced steps of median length. The parts except the "
        "overlap add up to the step."
    )
    facts = [meaning]
    shared = max((oversubscription(trace) or 0.0 for trace in traced.values()), default=0.0)
    if shared > 1:
        facts.append(
            f"Devices worked {numbers.significant(shared)} times as long as the cores could: "
            "part of that is waiting for a core."
        )
    remarks = [found.sentence for found in said]
    return Table("Where a step's time goes", columns, rows, facts, remarks)


def _nonzero(part: str) -> Any:
    return lambda row: row[part] or None


def _share(part: str) -> Any:
    return lambda row: numbers.percent(row[part] / row["total"]) if row[part] else ""


def _slowest(trace: TraceRow) -> dict[str, Any]:
    """Return the device that computes longest, and its relative excess over the mean."""
    seconds = stragglers(trace)
    if len(seconds) == 1:
        return {"slowest": None, "excess": None}
    place = max(seconds, key=lambda device: seconds[device])
    mean = sum(seconds.values()) / len(seconds)
    return {"slowest": place, "excess": seconds[place] / mean - 1 if mean else None}


def _excess(row: Mapping[str, Any]) -> str:
    return "" if missing(row["excess"]) else f"+{numbers.percent(row['excess'])}"


def reasons(block: Comparison, traces: Mapping[str, TraceRow]) -> dict[str, Reason]:
    """Return why implementations are faster or slower than their baseline, as far as traced."""
    return {
        cell["implementation"]: _reason(cell, block.baseline, *pair)
        for cell in block.ranked
        if cell["verdict"] in {"faster", "slower"}
        and (pair := pair_of(cell, baseline_cell(block), traces)) is not None
    }


def _reason(cell: Mapping[str, Any], baseline: str, found: Attribution, timed: float) -> Reason:
    """Explain a difference that also appears when waiting after every step, as in traces."""
    name = cell["implementation"]
    if (timed > 1) == (cell["verdict"] == "slower"):
        return reason(name, baseline, found, timed)
    return Reason(
        f"{name} is {cell['verdict']} than {baseline}, but not with a wait after every step, as in "
        f"traces ({numbers.signed_percent(timed - 1)} there): the difference arises where steps "
        "follow without a pause."
    )


def against_fastest(block: Comparison, traces: Mapping[str, TraceRow]) -> dict[str, Reason]:
    """Explain why arms slower than the baseline are slower than the fastest, if that is another."""
    if not block.ranked:
        return {}
    fastest = block.ranked[0]
    return {
        cell["implementation"]: reason(cell["implementation"], fastest["implementation"], *pair)
        for cell in block.ranked
        if fastest["verdict"] == "faster"
        and cell["verdict"] == "slower"
        and (pair := pair_of(cell, fastest, traces)) is not None
        and pair[1] > 1 + block.margin
    }


def trace_viewer(trace: TraceRow) -> str:
    """Return the address of a cell's trace in TensorBoard."""
    run = quote(trace["profile"], safe="")
    return f"{TENSORBOARD}/?run={run}&tag=trace_viewer@&host={quote(trace['host'])}#profile"
