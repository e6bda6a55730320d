"""Predictions of a stored run's steps on more devices and other hardware.

The run contributes its cells' times, its measured ceilings, and the figures of its programs. The
same steps on other meshes come from `bench.project.mesh_growth`: compiled, or by formula.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.analyse import cell_table, rooflines
from bench.plan.option_values import BadInput
from bench.project import program_formulae, published_results
from bench.project.calibration import Calibrated, Observation, calibrate
from bench.project.compiled_programs import Program, Read, Unread, from_row
from bench.project.hardware import Hardware, HardwareError
from bench.project.machines import of_ceilings
from bench.project.mesh_growth import Curve, Scaling, step_elsewhere
from bench.project.program_formulae import Formula
from bench.project.projection_request import Request, without_peak
from bench.project.step_model import Prediction, on_sheet, work
from bench.records import store
from bench.records.cells import Cell, StepOptions
from bench.records.rows import Ceilings, CellRow


@dataclass(frozen=True)
class Point:
    """A prediction, or the reason why there is none."""

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
    alike: int = 0
    """Number of other implementations with the same prediction; counted for the fastest only."""

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
    """This machine's calibrations by subject (`mlp-base, fp32`), with the run's measured steps and
    their predictions from the other meshes."""
    points: list[Point]
    formulae: dict[Curve, Formula | str]
    """The formulae of curves, or the reasons why they have none."""
    unread: list[Unread]
    """Cells of the run whose programs are not available."""

    def frame(self) -> pd.DataFrame:
        """Return the rows of predictions.csv, one per point."""
        return pd.DataFrame([_row(point) for point in self.points])


def project(run: store.Run, request: Request, read: Read) -> Projection:
    """Calibrate this machine by a run, and predict the run's steps on other hardware.

    Raises:
      BadInput: the run has no launches or ceilings, no timed cell is selected, or hardware has no
        published peak for the precision.
    """
    cells = cell_table.build(run).cells
    ceilings = rooflines.ceilings(run.block_rows)
    name = run.directory.name
    if run.blocks.empty:
        lost = "; all launches are set aside, see the warnings" if run.damaged else ""
        raise BadInput([f"{name} has no launches{lost}"])
    if not ceilings:
        raise BadInput([f"{name} has no ceilings: the run failed to measure them"])
    timed = cells[cells["status"] == "ok"]
    times = dict(zip(timed["cell"], timed["step_s"].astype(float), strict=True))
    rows = [row for row in run.decisive() if row["cell"] in times]
    selected = [Cell.of(row) for row in rows if request.select(row["cell"])]
    if not selected:
        raise BadInput([f"no timed cell of {name} is selected"])
    precisions = {request.precision or cell.block.options.precision for cell in selected}
    # Compiling takes minutes, so faults are reported first.
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
            observations[program.cell.block.subject].append(observed)
    curves = list(dict.fromkeys(_curves(programs, request)))
    by_chips, formulae = program_formulae.along(curves, request.chips, read)
    return Projection(
        run=name,
        scaling=request.scaling,
        here={subject: calibrate(steps) for subject, steps in observations.items()},
        points=[
            point
            for sheet in request.hardware
            for curve, of_curve in by_chips.items()
            for point in _points(curve, sheet, of_curve)
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
    except HardwareError as error:
        return Unread(program.cell, str(error))
    return Observation(step, times[row["cell"]], str(program.mesh))


def _curves(programs: Sequence[Program], request: Request) -> Iterator[Curve]:
    """Yield a curve for each implementation, family of meshes, and batch of its smallest mesh."""
    families = defaultdict[tuple[StepOptions, Curve], list[tuple[int, int]]](list)
    for program in programs:
        curve = Curve.through(step_elsewhere(program.cell, request.precision), request.scaling)
        family = program.cell.block.options, replace(curve, batch=0)
        families[family].append((program.mesh.size, curve.batch))
    for (_, curve), members in families.items():
        fewest, _ = min(members)
        for batch in sorted({batch for devices, batch in members if devices == fewest}):
            yield replace(curve, batch=batch)


def _points(
    curve: Curve, sheet: Hardware, programs: Mapping[int, Program | str]
) -> Iterator[Point]:
    calibration = published_results.elsewhere(sheet.name).calibration
    first: Prediction | None = None
    for chips, program in programs.items():
        prediction = program if isinstance(program, str) else on_sheet(sheet, program, calibration)
        if isinstance(prediction, str):
            yield Point(curve, sheet.name, chips, reason=prediction)
        elif prediction.fits is False:
            yield Point(curve, sheet.name, chips, prediction)
        else:
            first = first or prediction
            yield Point(curve, sheet.name, chips, prediction, *_efficiency(prediction, first))


def _efficiency(prediction: Prediction, first: Prediction) -> tuple[float, float, float]:
    """Return throughput per chip relative to the first prediction, with its range."""
    share = prediction.program.units / first.program.units
    share *= first.program.mesh.size / prediction.program.mesh.size
    best = share * first.best_s / prediction.best_s
    overlaps = [replace(prediction.calibration, exposed=exposed) for exposed in (0.0, 1.0)]
    ends = [share * first.work.step_s(c) / prediction.work.step_s(c) for c in overlaps]
    return best, min(best, *ends), max(best, *ends)


def _row(point: Point) -> dict[str, Any]:
    curve = point.curve
    cell = curve.cell(point.chips)
    return {
        "hardware": point.hardware, "chips": point.chips, "scaling": curve.scaling,
        "workload": curve.workload, "size": curve.size, "options": str(curve.options),
        "implementation": curve.implementation,
        "mesh": None if cell is None else str(cell.block.mesh),
        "batch": None if cell is None else cell.block.batch,
        "reason": point.reason,
        "efficiency": point.efficiency, "efficiency_low": point.efficiency_low,
        "efficiency_high": point.efficiency_high,
        **(point.prediction.row() if point.prediction else {}),
    }  # fmt: skip
