"""The cost of input: a table, and a sentence for each way of input."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bench.present.cell_columns import IMPLEMENTATION
from bench.present.columns import Column, Table, formatted
from bench.records import numbers
from bench.records.arms import INPUT_WAYS
from bench.records.statuses import VERDICT_STYLES

FACT = (
    "Each step takes the next batch, in turns with the same implementation on one resident batch. "
    "The wait lasts from the request for a batch until the host can launch the step; where steps "
    "follow without a pause, devices may still be busy with earlier ones."
)

COLUMNS = (
    IMPLEMENTATION,
    Column("way", "Input", filter=True, detail=lambda row: row["reason"]),
    Column(
        "step_s", "Step time", "on a resident batch", "s",
        detail=lambda row: formatted(row["resident_step_s"], "s"),
    ),
    Column(
        "ratio", "To a resident batch", "ratio, 95 % interval", "ratio",
        span=("ratio_low", "ratio_high"),
    ),
    Column("verdict", "Verdict", filter=True),
    Column("wait_s", "Waits for input", "per step", "s"),
    Column("starved_s", "Devices idle for it", "per step, at most", "s"),
    Column("latency_wait_s", "Waits", "each step waited for", "s"),
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the cost of input."""
    ways = dict.fromkeys(row["way"] for row in rows)
    meanings = [f"{way.capitalize()}: {INPUT_WAYS[way]}." for way in ways]
    return Table(
        "Input, against a resident batch", COLUMNS, rows, [FACT, *meanings],
        name="inputs", cell=lambda row: row["cell"],
    )  # fmt: skip


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cost of input over all cells, in one sentence for each way."""
    said = []
    for way in INPUT_WAYS:
        measured = [row for row in rows if row["way"] == way and row["verdict"]]
        if not measured:
            continue
        ratios = [row["ratio"] for row in measured]
        counts: Counter[str] = Counter(row["verdict"] for row in measured)
        verdicts = ", ".join(f"{counts[word]} {word}" for word in VERDICT_STYLES if counts[word])
        ends = " to ".join(dict.fromkeys(map(numbers.ratio, (min(ratios), max(ratios)))))
        wait = numbers.si(float(np.median([row["wait_s"] for row in measured])), "s")
        said.append(
            f"Input {way}: {ends} of the step time on a resident batch ({verdicts}); a step "
            f"waits {wait} for it, the median of {numbers.count(len(measured), 'cell')}."
        )
    return said
