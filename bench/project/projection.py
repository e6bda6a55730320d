"""A stored run's steps on more devices and other hardware, beside those that were measured.

What is read of the run: its cells' times, its ceilings, and what its programs do. What is asked of
bench.project.compiled_programs: the same steps on other meshes, compiled, or beyond that by formula. Imports
no jax.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.analyse import cell_table, rooflines
from bench.plan.matrix import BadInput
from bench.plan.selection import everything
from bench.project import mesh_growth
from bench.project.calibration import Calibrated, Observation, calibrate
from bench.project.compiled_programs import Program, Unread, from_row
from bench.project.hardware import Hardware
from bench.project.link_placement import PlacementError
from bench.project.machines import MachineError, of_ceilings, of_sheet
from bench.project.mesh_growth import Curve, FormulaOf, Read
from bench.project.program_formulae import Scaling
from bench.project.projection_request import without_peak
from bench.project.published_checks import elsewhere
from bench.project.step_model import Calibration, Prediction, predict, work
from bench.records import store
from bench.records.cells import StepOptions
from bench.records.mesh import MeshShape
from bench.records.rows import cell_of


@dataclass(frozen=True)
class Asked:
    """What a run is projected to."""

    hardware: tuple[Hardware, ...]
    chips: tuple[int, ...]
    scaling: Scaling = "weak"
    precision: str | None = None
    """None for the run's own."""
    select: Callable[[str], bool] = everything
    """Which cells of the run are projected, by name; all of them calibrate."""


@dataclass(frozen=True)
class Measured:
    """A cell of the run beside what is predicted for it without its mesh."""

    program: Program
    subject: str
    measured_s: float
    predicted_s: float | None
    """None where only one mesh was measured."""


@dataclass(frozen=True)
class Point:
    """A prediction, or why there is none."""

    curve: Curve
    hardware: str
    chips: int
    prediction: Prediction | None
    efficiency: float | None
    """A chip's throughput, relative to that of the curve's fewest chips on which the step fits;
    None where it does not."""
    efficiency_low: float | None
    """The same with nothing hidden, or all of it, at both ends: the lower of them."""
    efficiency_high: float | None
    reason: str
    """Empty where there is a prediction."""

    @property
    def fits(self) -> bool:
        """Whether there is a prediction, and nothing says that the step does not fit in memory."""
        return self.prediction is not None and self.prediction.fits is not False


@dataclass(frozen=True)
class Projection:
    """All of it."""

    run: str
    scaling: Scaling
    here: dict[str, Calibrated]
    """This machine's calibration, by subject."""
    measured: list[Measured]
    points: list[Point]
    formulae: list[FormulaOf]
    """By which programs of meshes that were not compiled are known."""
    unread: list[Unread]
    """Cells of the run whose programs could not be had."""

    def frame(self) -> pd.DataFrame:
        """`predictions.csv`: a row a point."""
        return pd.DataFrame([_row(point, self.scaling) for point in self.points])


def project(run: store.Run, asked: Asked, read: Read) -> Projection:
    """Calibrate by a run, and predict its steps elsewhere.

    Raises:
      BadInput: the run has no ceilings, nothing in it was timed or selected, or hardware has no
        published peak for the precision.
    """
    found = cell_table.build(run)
    ceilings = rooflines.ceilings(run.blocks)
    if run.blocks.empty:
        lost = "; all launches are set aside, see the warnings" if run.damaged else ""
        raise BadInput([f"{run.directory.name} has no launches{lost}"])
    if not ceilings:
        raise BadInput([f"{run.directory.name} has no ceilings: measuring them failed in the run"])
    times = {
        row["cell"]: float(row["step_s"])
        for row in found.cells.to_dict("records")
        if row["status"] == "ok"
    }
    rows = [row for row in store.read(run.directory).cells() if row["cell"] in times]
    selected = [cell_of(row) for row in rows if asked.select(row["cell"])]
    if not selected:
        raise BadInput([f"no cell of {run.directory.name} that was timed is selected"])
    precisions = {asked.precision or cell.block.options.precision for cell in selected}
    # Before anything is compiled, which takes minutes.
    faults = [*without_peak(asked.hardware, sorted(precisions))]
    if faults:
        raise BadInput(faults)
    observations: defaultdict[str, list[Observation]] = defaultdict(list)
    programs: list[Program] = []
    unread: list[Unread] = []
    for row in rows:
        program = from_row(row)
        if isinstance(program, Unread):
            unread.append(program)
            continue
        if asked.select(row["cell"]):
            programs.append(program)
        own = ceilings.get(row["block"])
        if own is None:
            unread.append(
                Unread(program.cell, "measuring its machine's ceilings failed in the run")
            )
            continue
        try:
            step = work(program, of_ceilings(own, program.mesh))
        except MachineError as error:
            unread.append(Unread(program.cell, str(error)))
            continue
        observed = Observation(step, times[row["cell"]], str(program.mesh))
        observations[_subject(program)].append(observed)
    here = {subject: calibrate(steps) for subject, steps in observations.items()}
    curves = list(dict.fromkeys(_curves(programs, asked)))
    grown, formulae = mesh_growth.programs(curves, asked.chips, asked.scaling, read)
    return Projection(
        run=run.directory.name,
        scaling=asked.scaling,
        here=here,
        measured=[
            one for subject in here for one in _measured(subject, here[subject], observations)
        ],
        points=list(_points(grown, asked)),
        formulae=formulae,
        unread=unread,
    )


def _subject(program: Program) -> str:
    return f"{program.workload}-{program.size}, {program.options}"


def _measured(
    subject: str, found: Calibrated, observations: dict[str, list[Observation]]
) -> Iterator[Measured]:
    predicted = {id(one.observation): one.predicted_s for one in found.tried}
    for one in observations[subject]:
        yield Measured(
            program=one.work.program,
            subject=subject,
            measured_s=one.seconds,
            predicted_s=predicted.get(id(one)),
        )


def _curves(programs: Sequence[Program], asked: Asked) -> Iterator[Curve]:
    """One for each implementation, family of meshes and batch of the smallest of these."""
    families: defaultdict[tuple[Any, ...], list[Program]] = defaultdict(list)
    for program in programs:
        (first, _), *others = program.mesh.axes
        key = (
            program.workload, program.size, program.options, program.implementation, first,
            tuple(others),
        )  # fmt: skip
        families[key].append(program)
    for (workload, size, options, implementation, first, others), members in families.items():
        fewest = min(program.mesh.size for program in members)
        smallest = [program for program in members if program.mesh.size == fewest]
        for batch in sorted({batch_of(asked.scaling, p.batch, p.mesh) for p in smallest}):
            yield Curve(
                workload=workload,
                size=size,
                options=elsewhere_options(options, asked.precision),
                implementation=implementation,
                family=others,
                first=first,
                batch=batch,
            )


def elsewhere_options(options: StepOptions, precision: str | None) -> StepOptions:
    """Options of a step that runs elsewhere, where its environment and processes are others.

    Args:
      options: of the run's step.
      precision: asked for; None for the run's own.
    """
    precision = precision or options.precision
    return replace(options, precision=precision, variant="", processes=1)


def batch_of(scaling: Scaling, batch: int, mesh: MeshShape) -> int:
    """What stays along a curve, of a step's batch: all of it, or what a shard of it has."""
    return batch // mesh.batch_shards if scaling == "weak" else batch


def _points(
    found: Mapping[Curve, Mapping[int, Program | Unread | None]], asked: Asked
) -> Iterator[Point]:
    for sheet in asked.hardware:
        calibration = elsewhere(sheet.name).calibration
        for curve, programs in found.items():
            line = [(chips, _times(programs[chips], sheet, calibration)) for chips in asked.chips]
            yield from _with_efficiency(curve, sheet.name, line)


@dataclass(frozen=True)
class _Times:
    """A prediction, and its best guess with all hidden that can be, and with nothing."""

    prediction: Prediction
    hidden_s: float
    exposed_s: float


def _times(
    program: Program | Unread | None, sheet: Hardware, calibration: Calibration
) -> _Times | str:
    """What is predicted of a program, or why nothing is."""
    if program is None:
        return "the mesh or the batch does not divide"
    if isinstance(program, Unread):
        return program.reason
    try:
        found = work(program, of_sheet(sheet, program.mesh, program.options.precision))
    except PlacementError as error:
        return str(error)
    return _Times(
        predict(found, calibration),
        found.step_s(replace(calibration, exposed=0.0)),
        found.step_s(replace(calibration, exposed=1.0)),
    )


def _with_efficiency(
    curve: Curve, hardware: str, line: Sequence[tuple[int, _Times | str]]
) -> Iterator[Point]:
    """Throughput of a chip, relative to the fewest on which the step fits."""
    first: tuple[int, _Times] | None = None
    for chips, one in line:
        if isinstance(one, str):
            yield Point(curve, hardware, chips, None, None, None, None, reason=one)
            continue
        if one.prediction.fits is False:
            yield Point(curve, hardware, chips, one.prediction, None, None, None, reason="")
            continue
        fewest, fastest = first = first or (chips, one)
        units = one.prediction.program.units / fastest.prediction.program.units
        share = units * fewest / chips
        best = share * fastest.prediction.best_s / one.prediction.best_s
        ends = share * fastest.hidden_s / one.hidden_s, share * fastest.exposed_s / one.exposed_s
        low, high = min(best, *ends), max(best, *ends)
        yield Point(curve, hardware, chips, one.prediction, best, low, high, reason="")


def _row(point: Point, scaling: Scaling) -> dict[str, Any]:
    curve, found = point.curve, point.prediction
    cell = curve.cell(point.chips, scaling)
    row: dict[str, Any] = {
        "hardware": point.hardware,
        "chips": point.chips,
        "scaling": scaling,
        "workload": curve.workload,
        "size": curve.size,
        "options": str(curve.options),
        "implementation": curve.implementation,
        "mesh": None if cell is None else str(cell.block.mesh),
        "batch": None if cell is None else cell.block.batch,
        "reason": point.reason,
        "efficiency": point.efficiency,
        "efficiency_low": point.efficiency_low,
        "efficiency_high": point.efficiency_high,
    }
    if found is None:
        return row
    return row | {
        "read": found.program.read,
        "step_s": found.best_s,
        "step_low_s": found.low_s,
        "step_high_s": found.high_s,
        "unit": found.program.unit,
        "units_per_s": found.units_per_s,
        "mfu": found.mfu,
        "binds": found.binds,
        "limit": found.limit,
        "compute_s": found.compute_s,
        "memory_s": found.memory_s,
        "communication_s": found.communication_s,
        "hidden_s": found.hidden_s,
        "overhead_s": found.overhead_s,
        "memory_bytes": found.memory_bytes,
        "capacity_bytes": found.capacity_bytes,
        "fits": found.fits,
        "flops": found.program.flops,
        "accessed_bytes": found.program.accessed_bytes,
        "state_bytes": found.program.state_bytes,
        "collectives": json.dumps(
            [
                {
                    "kind": one.kind,
                    "axes": list(one.axes),
                    "count": one.count,
                    "payload_bytes": one.payload_bytes,
                    "seconds": one.seconds,
                    "algorithm": one.algorithm,
                    "limit": one.limit,
                    "hideable": one.hideable,
                }
                for one in found.collectives
            ]
        ),
    }
