"""The shares of a step's parts: a table, and a sentence for each cell."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.analyse.arms_beside import PARTS
from bench.present.cell_columns import IMPLEMENTATION
from bench.present.columns import Column, Table, between, missing
from bench.records import numbers
from bench.records.arms import ABLATIONS

FACT = (
    "The share of a part is the time that a step without it saves, in turns with the whole step. "
    "Shares need not add up, because parts may overlap."
)
TRACED = (
    "In a trace, which records a few steps and waits after each, a part has the time of its "
    "operations."
)

LABELS = {
    "communication": "communication",
    "update": "the update",
    "after_loss": "all that follows from the gradients",
}
TITLES = {
    "communication": ("Communication", "share, 95 % interval"),
    "update": ("Update", "by the optimizer"),
    "after_loss": ("After the loss", "backward pass, reduction, update"),
}

COLUMNS = (
    IMPLEMENTATION,
    *(
        column
        for part, (title, note) in TITLES.items()
        for column in (
            Column(part, title, note, "percent", span=(f"{part}_low", f"{part}_high")),
            Column(f"{part}_traced", "In the trace", title.lower(), "percent", optional=True),
        )
    ),
)


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of the shares of a step's parts."""
    meanings = [f"{TITLES[part][0]}: {ABLATIONS[way]}." for way, part in PARTS.items()]
    traced = [TRACED] * any(not missing(row[f"{part}_traced"]) for row in rows for part in LABELS)
    return Table(
        "Parts of the step, by ablation", COLUMNS, rows, [FACT, *meanings, *traced],
        remarks=[remark for row in rows for remark in _reasons(row)],
        name="ablations", cell=lambda row: row["cell"],
    )  # fmt: skip


def _reasons(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['implementation']} has no share of {label}: {row[f'{part}_reason']}."
        for part, label in LABELS.items()
        if row[f"{part}_reason"]
    ]


def sentence(row: Mapping[str, Any]) -> str:
    """Return a cell's shares, such as `communication 31 % (29-33 %)`; empty if it has none."""
    shares = []
    for part, label in LABELS.items():
        if missing(row[part]):
            continue
        text = f"{label} {numbers.percent(row[part])}"
        notes = [between(row[f"{part}_low"], row[f"{part}_high"], "percent")]
        if not missing(row[f"{part}_traced"]):
            notes.append(f"{numbers.percent(row[f'{part}_traced'])} in its trace")
        shares.append(f"{text} ({'; '.join(filter(None, notes))})" if any(notes) else text)
    return f"Of a step of {row['cell']}, by ablation: {', '.join(shares)}." if shares else ""
