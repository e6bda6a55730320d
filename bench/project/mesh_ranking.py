"""Mesh shapes and implementations of one workload, ranked by predicted step time: a plan."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from rich.console import Console

from bench.present import terminal
from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.project import prediction_tables
from bench.project.compiled_programs import NoProgram, Read
from bench.project.hardware import Hardware
from bench.project.prediction_tables import BOUND, INTERVAL, MFU, STEP
from bench.project.published_results import predict_on
from bench.project.step_model import Prediction
from bench.records import frames, numbers
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import AXES, MeshShape

SHOWN = 24
"""The most rows on the terminal."""

COLUMNS = (
    Column("mesh", "Mesh", value=lambda one: str(one.program.mesh)),
    Column("name", "Implementation", value=lambda one: one.program.cell.implementation),
    *(STEP, INTERVAL, MFU, BOUND),
    Column("memory", "Memory", "per chip", "bytes", lambda one: one.program.memory_bytes),
    Column("fits", "Fits", value=lambda one: "yes" if one.fits else "may not"),
)


@dataclass(frozen=True)
class Plan:
    """All predictions for a workload on a number of chips."""

    title: str
    hardware: Hardware
    ranked: list[Prediction]
    """Fastest first; those that exceed the memory come last."""
    unsupported: Counter[str]
    """How many steps are not supported, by the implementation's reason."""
    refused: Counter[str]
    """How many are left out for any other reason."""


def meshes(chips: int) -> Iterator[MeshShape]:
    """Yield all mesh shapes of this many chips, without axes of size 1 other than `data`."""
    for sizes in _factors(chips, len(AXES)):
        axes = zip(AXES, sizes, strict=True)
        yield MeshShape(tuple(axis for axis in axes if axis[1] > 1 or axis[0] == "data"))


def _factors(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all `count` numbers with this product, in every order."""
    if not count:
        yield from [()] if product == 1 else []
        return
    for first in (number for number in range(1, product + 1) if product % number == 0):
        yield from ((first, *others) for others in _factors(product // first, count - 1))


def rank(
    workload: tuple[str, str],
    batch: int,
    options: StepOptions,
    sheet: Hardware,
    chips: int,
    implementations: Sequence[str],
    read: Read,
) -> Plan:
    """Predict a workload's implementations on all meshes of this many chips they support."""
    cells = []
    unsupported, refused = Counter[str](), Counter[str]()
    for mesh in meshes(chips):
        parts = mesh.batch_shards * options.microbatches
        if batch % parts:
            reason = f"a batch of {batch} does not divide by {parts}, its shards times microbatches"
            refused[reason] += len(implementations)
        else:
            block = Block(*workload, mesh, batch, options)
            cells += [Cell(block, name) for name in implementations]
    ranked = []
    for program in read(cells):
        if isinstance(program, NoProgram):
            reasons = unsupported if program.lack == "unsupported" else refused
            reasons[program.reason] += 1
            continue
        prediction = predict_on(sheet, program)
        if isinstance(prediction, str):
            refused[prediction] += 1
        else:
            ranked.append(prediction)
    ranked.sort(key=lambda one: (not one.fits, one.best_s))
    title = f"{'-'.join(workload)}, {options}, batch {batch}, on {chips} {sheet.name}"
    return Plan(title, sheet, ranked, unsupported, refused)


def remarks(plan: Plan) -> list[str]:
    """Return what readers must know about the predicted times and memory."""
    has = f"A chip has {numbers.bytes_(plan.hardware.memory.bytes.value)} of memory."
    return [has, *prediction_tables.small(plan.ranked), prediction_tables.MEMORY]


def build(plan: Plan, folder: Path) -> Path:
    """Write plan.html, .md, .csv and .parquet; return the page. Raises OSError if it cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"cell": cell.name, "implementation": cell.implementation, "mesh": str(cell.block.mesh)}
        | one.row()
        for one in plan.ranked
        for cell in [one.program.cell]
    ]
    frames.write(pd.DataFrame(rows), folder, "plan")
    table = Table("Mesh shapes by predicted step time", COLUMNS, plan.ranked, remarks=remarks(plan))
    rests = prediction_tables.hardware(plan.hardware)
    left_out = [
        f"{count} {what}: {reason}"
        for what, reasons in (("left out", plan.refused), ("not supported", plan.unsupported))
        for reason, count in reasons.items()
    ]
    return write_pages(
        folder, "plan", title=plan.title, table=table, rests=rests, left_out=left_out
    )


def show(console: Console, plan: Plan) -> None:
    """Print the first of the ranking, of which those that may not fit come last."""
    more = len(plan.ranked) - SHOWN
    notes = [f"{more} more, see the page"] if more > 0 else []
    notes += [f"{count} left out: {reason}" for reason, count in plan.refused.items()]
    notes += remarks(plan)
    if unsupported := plan.unsupported.total():
        why = "not supported by the implementation; the page says why"
        notes.append(f"{unsupported} left out: {why}")
    narrow = [column for column in COLUMNS if column is not BOUND]
    table = Table(f"Predicted: {plan.title}", narrow, plan.ranked[:SHOWN], notes)
    terminal.show(console, table)
