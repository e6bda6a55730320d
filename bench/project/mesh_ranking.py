"""Mesh shapes and implementations of one workload, ranked by predicted step time."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.project.compiled_programs import Read, Unread
from bench.project.hardware import Hardware
from bench.project.published_results import elsewhere
from bench.project.step_model import Prediction, on_sheet
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import AXES, MeshShape


@dataclass(frozen=True)
class Plan:
    """All predictions for a workload on a number of chips."""

    title: str
    hardware: Hardware
    ranked: list[Prediction]
    """Fastest first; those that exceed the memory come last."""
    unsupported: dict[str, list[str]]
    """`jit_spmd on data=8`, by the implementation's reason."""
    refused: dict[str, list[str]]
    """The same for all other reasons."""

    def frame(self) -> pd.DataFrame:
        """Return the rows of plan.csv."""
        rows = []
        for one in self.ranked:
            cell = one.program.cell
            name = {"cell": cell.name, "implementation": cell.implementation}
            rows.append({**name, "mesh": str(cell.block.mesh), **one.row()})
        return pd.DataFrame(rows)


def meshes(chips: int) -> Iterator[MeshShape]:
    """Yield all mesh shapes of this many chips, without axes of size 1."""
    divisors = [number for number in range(1, chips + 1) if chips % number == 0]
    for outer in itertools.product(divisors, repeat=len(AXES) - 1):
        last, rest = divmod(chips, math.prod(outer))
        if not rest:
            sizes = zip(AXES, (*outer, last), strict=True)
            axes = tuple((name, size) for name, size in sizes if size > 1)
            yield MeshShape(axes or (("data", 1),))


def rank(
    workload: tuple[str, str],
    batch: int,
    options: StepOptions,
    sheet: Hardware,
    chips: int,
    implementations: Sequence[str],
    read: Read,
) -> Plan:
    """Predict every implementation on every mesh of this many chips that it supports.

    `workload` is a name and a size; the batch is global.
    """
    cells = []
    unsupported = defaultdict[str, list[str]](list)
    refused = defaultdict[str, list[str]](list)
    for mesh in meshes(chips):
        parts = mesh.batch_shards * options.microbatches
        if batch % parts:
            reason = f"a batch of {batch} does not divide into {parts} shards and microbatches"
            refused[reason] += [f"{name} on {mesh}" for name in implementations]
        else:
            block = Block(*workload, mesh, batch, options)
            cells += [Cell(block, name) for name in implementations]
    calibration = elsewhere(sheet.name).calibration
    ranked = []
    for cell, program in zip(cells, read(cells), strict=True):
        name = f"{cell.implementation} on {cell.block.mesh}"
        if isinstance(program, Unread):
            reasons = unsupported if program.lack == "unsupported" else refused
            reasons[program.reason].append(name)
            continue
        prediction = on_sheet(sheet, program, calibration)
        if isinstance(prediction, str):
            refused[prediction].append(name)
        else:
            ranked.append(prediction)
    ranked.sort(key=lambda one: (one.fits is False, one.best_s))
    title = f"{'-'.join(workload)}, {options}, batch {batch}, on {chips} {sheet.name}"
    return Plan(title, sheet, ranked, dict(unsupported), dict(refused))
