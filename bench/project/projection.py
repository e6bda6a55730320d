"""The predicted steps of a stored run on more devices and other hardware.

The run contributes its cells' times, its measured ceilings, and the figures of its programs. The
same steps on other meshes come from `bench.project.mesh_growth`: compiled, or by formula.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.analyse import cell_table, rooflines
from bench.plan.option_values import BadInput
from bench.project import mesh_growth
from bench.project.calibration import Calibrated, Observation, calibrate
from bench.project.compiled_programs import Program, Read, Unread, from_row
from bench.project.hardware import Hardware
from bench.project.link_placement import PlacementError
from bench.project.machines import MachineError, of_ceilings, of_sheet
from bench.project.mesh_growth import Curve
from bench.project.program_formulae import Formula, Scaling
from bench.project.projection_request import Request, without_peak
from bench.project.published_results import elsewhere
from bench.project.step_model import Calibration, Prediction, predict, work
from bench.records import store
from bench.records.cells import Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.rows import Ceilings, CellRow

_Family = tuple[StepOptions, tuple[str, str, StepOptions, str], tuple[tuple[str, int], ...], str]
"""The run's own options, and what a curve's step and its other axes are."""


@dataclass(frozen=True)
class Measured:
    """A cell of the run, and the time predicted for it from the other meshes."""

    program: Program
    subject: str
    measured_s: float
    predicted_s: float | None
    """None if only one mesh was measured."""


@dataclass(frozen=True)
class Point:
    """A prediction, or the reason for its absence."""

    curve: Curve
    hardware: str
    chips: int
    prediction: Prediction | None = None
    efficiency: float | None = None
    """Throughput per chip, relative to the curve's fewest chips on which the step fits; None where
    it does not fit."""
    efficiency_low: float | None = None
    """The lowest efficiency with no, all, or the calibrated share of communication hidden."""
    efficiency_high: float | None = None
    reason: str = ""
    """Empty if there is a prediction."""

    @property
    def fits(self) -> bool:
        """Whether there is a prediction, and the step is not known to exceed the memory."""
        return self.prediction is not None and self.prediction.fits is not False


@dataclass(frozen=True)
class Projection:
    """All predictions of a run."""

    run: str
    scaling: Scaling
    here: dict[str, Calibrated]
    """This machine's calibrations, by subject (`mlp-base, fp32`)."""
    measured: list[Measured]
    points: list[Point]
    formulae: dict[Curve, Formula | str]
    """The formulae of curves, or the reasons why they have none."""
    unread: list[Unread]
    """Cells of the run whose programs are not available."""

    def frame(self) -> pd.DataFrame:
        """The rows of predictions.csv, one per point."""
        return pd.DataFrame([_row(point, self.scaling) for point in self.points])


def project(run: store.Run, request: Request, read: Read) -> Projection:
    """Calibrate this machine by a run, and predict the run's steps on other hardware.

    Raises:
      BadInput: the run has no launches or ceilings, no timed cell is selected, or hardware has no
        published peak for the precision.
    """
    cells = cell_table.build(run).cells
    ceilings = rooflines.ceilings(run.blocks)
    name = run.directory.name
    if run.blocks.empty:
        lost = "; all launches are set aside, see the warnings" if run.damaged else ""
        raise BadInput([f"{name} has no launches{lost}"])
    if not ceilings:
        raise BadInput([f"{name} has no ceilings: the run failed to measure them"])
    timed = cells[cells["status"] == "ok"]
    times = dict(zip(timed["cell"], timed["step_s"].astype(float), strict=True))
    rows = [row for row in store.read(run.directory).cells() if row["cell"] in times]
    selected = [Cell.of(row) for row in rows if request.select(row["cell"])]
    if not selected:
        raise BadInput([f"no timed cell of {name} is selected"])
    precisions = {request.precision or cell.block.options.precision for cell in selected}
    # Compiling takes minutes, so faults come first.
    if faults := [*without_peak(request.hardware, sorted(precisions))]:
        raise BadInput(faults)
    observations = defaultdict[str, list[Observation]](list)
    programs: list[Program] = []
    unread: list[Unread] = []
    for row in rows:
        program = from_row(row)
        if isinstance(program, Unread):
            unread.append(program)
            continue
        if request.select(row["cell"]):
            programs.append(program)
        observed = _observation(row, program, ceilings, times)
        if isinstance(observed, Unread):
            unread.append(observed)
        else:
            observations[_subject(program)].append(observed)
    here = {subject: calibrate(steps) for subject, steps in observations.items()}
    curves = list(dict.fromkeys(_curves(programs, request)))
    by_chips, formulae = mesh_growth.programs(curves, request.chips, request.scaling, read)
    return Projection(
        run=name,
        scaling=request.scaling,
        here=here,
        measured=[
            measured
            for subject, calibrated in here.items()
            for measured in _measured(subject, calibrated, observations[subject])
        ],
        points=[
            point
            for sheet in request.hardware
            for curve, of_curve in by_chips.items()
            for point in _points(curve, sheet, [(n, of_curve[n]) for n in request.chips])
        ],
        formulae=formulae,
        unread=unread,
    )


def _observation(
    row: CellRow, program: Program, ceilings: dict[str, Ceilings], times: dict[str, float]
) -> Observation | Unread:
    own = ceilings.get(row["block"])
    if own is None:
        return Unread(program.cell, "the run failed to measure its machine's ceilings")
    try:
        step = work(program, of_ceilings(own, program.mesh))
    except MachineError as error:
        return Unread(program.cell, str(error))
    return Observation(step, times[row["cell"]], str(program.mesh))


def _subject(program: Program) -> str:
    return f"{program.workload}-{program.size}, {program.options}"


def _measured(
    subject: str, calibrated: Calibrated, observations: Sequence[Observation]
) -> Iterator[Measured]:
    predicted = {id(trial.observation): trial.predicted_s for trial in calibrated.tried}
    for one in observations:
        yield Measured(one.work.program, subject, one.seconds, predicted.get(id(one)))


def _curves(programs: Sequence[Program], request: Request) -> Iterator[Curve]:
    """A curve for each implementation, family of meshes, and batch of its smallest mesh."""
    families = defaultdict[_Family, list[Program]](list)
    for program in programs:
        (first, _), *rest = program.mesh.axes
        options = elsewhere_options(program.options, request.precision)
        step = program.workload, program.size, options, program.implementation
        families[program.options, step, tuple(rest), first].append(program)
    for (_, step, others, first), members in families.items():
        fewest = min(program.mesh.size for program in members)
        smallest = [program for program in members if program.mesh.size == fewest]
        for batch in sorted({batch_of(request.scaling, p.batch, p.mesh) for p in smallest}):
            yield Curve(*step, others, first, batch)


def elsewhere_options(options: StepOptions, precision: str | None) -> StepOptions:
    """The options of a run's step on other hardware, where its environment and processes differ.

    A `precision` of None keeps the run's own.
    """
    precision = precision or options.precision
    return replace(options, precision=precision, variant="", processes=1)


def batch_of(scaling: Scaling, batch: int, mesh: MeshShape) -> int:
    """The batch that stays constant along a curve: the global one, or that of a shard."""
    return batch // mesh.batch_shards if scaling == "weak" else batch


def _points(
    curve: Curve, sheet: Hardware, programs: Sequence[tuple[int, Program | Unread | None]]
) -> Iterator[Point]:
    calibration = elsewhere(sheet.name).calibration
    first: Prediction | None = None
    for chips, program in programs:
        prediction = _predict(program, sheet, calibration)
        if isinstance(prediction, str):
            yield Point(curve, sheet.name, chips, reason=prediction)
        elif prediction.fits is False:
            yield Point(curve, sheet.name, chips, prediction)
        else:
            first = first or prediction
            yield Point(curve, sheet.name, chips, prediction, *_efficiency(prediction, first))


def _predict(
    program: Program | Unread | None, sheet: Hardware, calibration: Calibration
) -> Prediction | str:
    """The prediction of a program, or the reason for its absence."""
    if program is None:
        return "the mesh or the batch does not divide"
    if isinstance(program, Unread):
        return program.reason
    try:
        machine = of_sheet(sheet, program.mesh, program.options.precision)
        return predict(work(program, machine), calibration)
    except PlacementError as error:
        return str(error)


def _efficiency(prediction: Prediction, first: Prediction) -> tuple[float, float, float]:
    """Throughput per chip relative to the first prediction, and its range over the overlap."""
    share = prediction.program.units / first.program.units
    share *= first.program.mesh.size / prediction.program.mesh.size
    best = share * first.best_s / prediction.best_s
    overlaps = [replace(prediction.calibration, exposed=exposed) for exposed in (0.0, 1.0)]
    ends = [share * first.work.step_s(c) / prediction.work.step_s(c) for c in overlaps]
    return best, min(best, *ends), max(best, *ends)


def _row(point: Point, scaling: Scaling) -> dict[str, Any]:
    curve = point.curve
    cell = curve.cell(point.chips, scaling)
    return {
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
        **(point.prediction.row() if point.prediction else {}),
    }
