"""Tables of input, ablations and checkpoints, and sentences about ablations and loss curves."""

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from bench.analyse import phase_costs
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.loss_curves import EARLY, Training
from bench.analyse.phase_costs import PARTS
from bench.present.cell_columns import IMPLEMENTATION
from bench.present.columns import Column, Table, between, formatted, missing, where_known
from bench.records import numbers
from bench.records.arms import ABLATIONS, INPUT_WAYS

Rows = Sequence[Mapping[str, Any]]

_WORDS = {
    "communication": ("communication", "Communication", "share, 95 % interval"),
    "update": ("the update", "Update", "by the optimizer"),
    "after_loss": (
        "all that follows from the gradients", "After the loss", "backward pass, reduction, update"
    ),
}  # fmt: skip
"""A part's name in a sentence, and the title and note of its column."""


def tables(found: Tables, blocks: Sequence[Comparison]) -> list[Table]:
    """Return the tables of some blocks, without rows if they were not measured."""
    return [
        inputs(phase_costs.input_costs(blocks)),
        ablations(phase_costs.find(blocks)),
        checkpoints(phase_costs.checkpoint_costs(blocks, found.checkpoints)),
    ]


def inputs(rows: Rows) -> Table:
    """Return the table of the cost of input."""
    columns = (
        IMPLEMENTATION,
        Column("way", "Input", filter=True, detail=lambda row: row["reason"]),
        Column("step_s", "Step time", "on a resident batch", "s",
               detail=lambda row: formatted(row["resident_step_s"], "s")),
        Column("ratio", "To a resident batch", "ratio, 95 % interval", "ratio",
               span=("ratio_low", "ratio_high")),
        Column("verdict", "Verdict", filter=True),
        Column("wait_s", "Waits for input", "per step", "s"),
        Column("starved_s", "Devices idle for it", "per step, at most", "s"),
    )  # fmt: skip
    ways = dict.fromkeys(row["way"] for row in rows)
    fact = (
        "Each step takes the next batch, in turns with the same implementation on one resident "
        "batch. The wait lasts from the request for a batch until the host can launch the step; "
        "where steps follow without a pause, devices may still be busy with earlier ones."
    )
    facts = [fact, *(f"{way.capitalize()}: {INPUT_WAYS[way]}." for way in ways)]
    title = "Input, against a resident batch"
    return Table(title, columns, rows, facts, name="inputs", cell=itemgetter("cell"))


def ablations(rows: Rows) -> Table:
    """Return the table of the shares of a step's parts."""
    columns = (
        IMPLEMENTATION,
        *(
            Column(part, title, note, "percent", span=(f"{part}_low", f"{part}_high"))
            for part, (_, title, note) in _WORDS.items()
        ),
    )
    fact = (
        "The share of a part is the time that a step without it saves, in turns with the whole "
        "step. Shares need not add up, because parts may overlap."
    )
    facts = [fact, *(f"{_WORDS[part][1]}: {ABLATIONS[way]}." for way, part in PARTS.items())]
    remarks = [
        f"{row['implementation']} has no share of {label}: {row[f'{part}_reason'].rstrip('.')}."
        for row in rows
        for part, (label, *_) in _WORDS.items()
        if row[f"{part}_reason"]
    ]
    title = "Parts of the step, by ablation"
    return Table(title, columns, rows, facts, remarks, "ablations", itemgetter("cell"))


def ablation_sentence(row: Mapping[str, Any]) -> str:
    """Return a cell's shares, such as `communication 31 % (29-33 %)`; empty if it has none."""
    shares = []
    for part, (label, *_) in _WORDS.items():
        if missing(row[part]):
            continue
        text = f"{label} {numbers.percent(row[part])}"
        ends = between(row[f"{part}_low"], row[f"{part}_high"], "percent")
        shares.append(f"{text} ({ends})" if ends else text)
    return f"Of a step of {row['cell']}, by ablation: {', '.join(shares)}." if shares else ""


def checkpoints(rows: Rows) -> Table:
    """Return the table of saves and restores."""
    columns = (
        IMPLEMENTATION,
        Column("what", "Operation", filter=True, long=True, detail=lambda row: row["reason"]),
        Column("total_s", "Takes", "median, range", "s", span=("total_least_s", "total_most_s")),
        Column("blocking_s", "Blocks training", "median, range", "s",
               span=("blocking_least_s", "blocking_most_s")),
        Column("bytes_a_second", "Bandwidth", "of the state", "B/s"),
        Column("stored_bytes", "Files", "for a state of", "bytes",
               detail=where_known("state_bytes", numbers.bytes_)),
        Column("step_during_s", "Step meanwhile", "before", "s",
               detail=where_known("step_before_s", lambda step_s: formatted(step_s, "s"))),
    )  # fmt: skip
    fact = (
        "Orbax saves and restores the state, each process the shards of its devices. The last "
        "state restored on each mesh was compared with the saved one bit by bit. Files are not "
        "forced to the disk while they are written, and are dropped from the system's cache before "
        "they are read, where it allows."
    )
    return Table("Checkpoints", columns, rows, [fact], (), "checkpoints", itemgetter("cell"))


def parted_losses(trainings: Iterable[Training]) -> str:
    """Name the curves whose differences rounding does not explain; empty if there are none."""
    curves = [(curve.early or 0.0, curve, each) for each in trainings for curve in each.parted]
    if not curves:
        return ""
    early, curve, where = max(curves, key=lambda each: each[0])
    return (
        f"{numbers.count(len(curves), 'cell')} diverged from the reference's losses within {EARLY} "
        f"steps, by more than the tolerance; {curve.arm} in {where.block.name} most, by "
        f"{numbers.scientific(early)}, where {numbers.scientific(curve.tolerance)} is allowed. In "
        "other arithmetic the reference stays within that, so rounding is unlikely to explain it."
    )


def unfinished_losses(trainings: Sequence[Training], found: Tables) -> list[str]:
    """Return the cells whose curves are missing or end early, with the reasons."""
    known = {training.block.name for training in trainings}
    curves = ((t.block, c) for t in trainings for c in t.curves)
    ended = [f"{block.name}/{one.arm}: {one.reason}" for block, one in curves if one.reason]
    lost = (block for block in found.comparisons if block.name not in known)
    return [*ended, *(f"{block.name}/{arm}: {block.ended}" for block in lost for arm in block.arms)]
