"""Mesh shapes and implementations of one workload, ranked by predicted step time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.project.compiled_programs import Read, Unread
from bench.project.hardware import Hardware
from bench.project.link_placement import PlacementError
from bench.project.machines import of_sheet
from bench.project.published_results import elsewhere
from bench.project.step_model import Prediction, predict, work
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape

ORDER = ("pipe", "data", "fsdp", "model")
"""Axes of a plan's meshes; the last one communicates most and gets the fastest links."""


@dataclass(frozen=True)
class Planned:
    """One implementation on one mesh."""

    cell: Cell
    prediction: Prediction


@dataclass(frozen=True)
class Plan:
    """All predictions for a workload on so many chips."""

    title: str
    hardware: Hardware
    ranked: list[Planned]
    """Fastest first; those that exceed the memory come last."""
    unsupported: dict[str, list[str]]
    """`jit_spmd on data=8`, by the reason that the implementation gives."""
    refused: dict[str, list[str]]
    """The same for all other reasons."""

    def frame(self) -> pd.DataFrame:
        """The rows of plan.csv."""
        return pd.DataFrame(
            {
                "cell": one.cell.name,
                "implementation": one.cell.implementation,
                "mesh": str(one.cell.block.mesh),
                **one.prediction.row(),
            }
            for one in self.ranked
        )


def meshes(chips: int) -> Iterator[MeshShape]:
    """All mesh shapes of so many chips, without axes of size 1."""
    for sizes in _factors(chips, len(ORDER)):
        axes = tuple((name, size) for name, size in zip(ORDER, sizes, strict=True) if size > 1)
        yield MeshShape(axes or (("data", 1),))


def _factors(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in _factors(number // first, parts - 1))


def rank(
    workload: tuple[str, str],
    batch: int,
    options: StepOptions,
    sheet: Hardware,
    chips: int,
    implementations: Sequence[str],
    read: Read,
) -> Plan:
    """Predict every implementation on every mesh that it supports.

    Args:
      workload: name and size.
      batch: global batch.
      options: of the step.
      sheet: the chip.
      chips: how many.
      implementations: names.
      read: compiles cells.

    Raises:
      MachineError: the chip has no published peak for the precision.
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
        try:
            step = work(program, of_sheet(sheet, cell.block.mesh, options.precision))
        except PlacementError as error:
            refused[str(error)].append(name)
            continue
        ranked.append(Planned(cell, predict(step, calibration)))
    ranked.sort(key=lambda one: (one.prediction.fits is False, one.prediction.best_s))
    title = f"{'-'.join(workload)}, {options}, batch {batch}, on {chips} {sheet.name}"
    return Plan(title, sheet, ranked, dict(unsupported), dict(refused))
