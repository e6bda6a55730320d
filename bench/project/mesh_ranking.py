"""Mesh shapes of so many chips for one workload, ranked by predicted step time. Imports no jax."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from bench.present.rendering import environment
from bench.project import projection_sentences
from bench.project.compiled_programs import Unread
from bench.project.hardware import Hardware
from bench.project.link_placement import PlacementError
from bench.project.machines import of_sheet
from bench.project.mesh_growth import Read
from bench.project.published_checks import elsewhere
from bench.project.step_model import Prediction, predict, work
from bench.records import files, numbers, store
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape

ORDER = ("pipe", "data", "fsdp", "model")
"""Axes of a plan's meshes, the innermost last: what communicates most has the fastest links."""
PAGE = "plan.html"


@dataclass(frozen=True)
class Planned:
    """One implementation on one mesh."""

    cell: Cell
    prediction: Prediction


@dataclass(frozen=True)
class Plan:
    """All that can be had."""

    title: str
    hardware: Hardware
    ranked: list[Planned]
    """The fastest first, those that do not fit in memory behind all others."""
    unsupported: list[tuple[str, list[str]]]
    """Reasons that implementations give, and of which on which meshes."""
    refused: list[tuple[str, list[str]]]
    """Other reasons why there is no prediction, and for which."""

    @property
    def slug(self) -> str:
        """`gpt2-124m-bf16-batch-512-on-64-h100-sxm`: the title, fit for a folder."""
        return files.slug(self.title)


def meshes(chips: int) -> Iterator[MeshShape]:
    """All shapes of so many chips, axes of one left out."""
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


def make(
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
      workload: its name and size.
      batch: of all chips.
      options: of the step.
      sheet: the chips.
      chips: how many.
      implementations: their names.
      read: what compiles cells.

    Raises:
      MachineError: the chip has no published peak for the precision.
    """
    parts = {mesh: mesh.batch_shards * options.microbatches for mesh in meshes(chips)}
    cells = [
        Cell(Block(*workload, mesh, batch, options), name)
        for mesh in parts
        if batch % parts[mesh] == 0
        for name in implementations
    ]
    calibration = elsewhere(sheet.name).calibration
    ranked = []
    unsupported: defaultdict[str, list[str]] = defaultdict(list)
    refused: defaultdict[str, list[str]] = defaultdict(list)
    for mesh, count in parts.items():
        if batch % count:
            reason = f"a batch of {batch} does not divide into {count} shards and microbatches"
            refused[reason] += [f"{name} on {mesh}" for name in implementations]
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
    return Plan(title, sheet, ranked, list(unsupported.items()), list(refused.items()))


@dataclass(frozen=True)
class Line:
    """A mesh and implementation, as text."""

    mesh: str
    implementation: str
    step: str
    interval: str
    mfu: str
    binds: str
    memory: str
    fits: bool


def lines(found: Plan) -> list[Line]:
    """The plan as rows of text."""
    made = []
    for one in found.ranked:
        step = one.prediction
        fits = step.fits is not False
        made.append(
            Line(
                mesh=str(one.cell.block.mesh),
                implementation=one.cell.implementation,
                step=numbers.si(step.best_s, "s"),
                interval=projection_sentences.interval(step),
                mfu=numbers.MISSING if step.mfu is None else numbers.percent(step.mfu),
                binds=projection_sentences.binds(step),
                memory=numbers.bytes_(step.memory_bytes),
                fits=fits,
            )
        )
    return made


def remarks(found: Plan) -> list[str]:
    """What has to be known of the steps and memory that are shown."""
    fastest = min((one.prediction.best_s for one in found.ranked), default=math.inf)
    small = [projection_sentences.SMALL] if fastest < projection_sentences.SMALL_S else []
    return [*small, projection_sentences.MEMORY]


def memory(found: Plan) -> str:
    """`of 74.5 GiB`: what a chip has."""
    return f"of {numbers.bytes_(found.hardware.memory.bytes.value)}"


def build(found: Plan, folder: Path) -> Path:
    """Write `plan.html`, `.md`, `.csv` and `.parquet` into a folder; returns the page.

    Raises:
      OSError: nothing can be written there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store.export(pd.DataFrame([_row(one) for one in found.ranked]), folder, "plan")
    shown = {
        "plan": found,
        "lines": lines(found),
        "memory": memory(found),
        "rests": projection_sentences.hardware(found.hardware),
        "remarks": remarks(found),
    }
    for name, markdown in ((PAGE, False), ("plan.md", True)):
        template = environment(markdown=markdown)
        files.write(folder / name, template.get_template(f"{name}.j2").render(shown))
    return folder / PAGE


def _row(one: Planned) -> dict[str, Any]:
    step = one.prediction
    return {
        "cell": one.cell.name,
        "implementation": one.cell.implementation,
        "mesh": str(one.cell.block.mesh),
        "step_s": step.best_s,
        "step_low_s": step.low_s,
        "step_high_s": step.high_s,
        "mfu": step.mfu,
        "binds": step.binds,
        "limit": step.limit,
        "compute_s": step.compute_s,
        "memory_s": step.memory_s,
        "communication_s": step.communication_s,
        "hidden_s": step.hidden_s,
        "overhead_s": step.overhead_s,
        "memory_bytes": step.memory_bytes,
        "capacity_bytes": step.capacity_bytes,
        "fits": step.fits,
        "read": step.program.read,
    }
