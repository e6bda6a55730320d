"""Predictions of a stored run's steps on more devices and other hardware.

The run contributes its cells' times, its measured ceilings, and the figures of its programs. The
same steps on other meshes come from `bench.project.program_formulae`: compiled, or by formula.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bench.analyse import cell_table, peaks
from bench.plan.option_values import BadInput, collected, whole
from bench.project import program_formulae
from bench.project.calibration import Calibrated, Trial, calibrate
from bench.project.compiled_programs import NoProgram, Program, Read, from_row
from bench.project.hardware import Hardware, HardwareError, hardware
from bench.project.machines import of_ceilings, place
from bench.project.program_formulae import Curve, Formula, Scaling, step_on_hardware
from bench.project.published_results import predict_on
from bench.project.step_model import Prediction, work
from bench.records import store
from bench.records.cells import PRECISIONS, Cell, StepOptions
from bench.records.mesh import MeshShape

MOST_CHIPS = 65_536


def chip_counts(text: str, most: int = MOST_CHIPS) -> list[int]:
    """Return the numbers of a list such as `8,16,24` or `8..65536` (doubling), sorted, each once.

    Raises ValueError if the text is not such a list, or if a number is not from 1 to `most`.
    """
    counts = set[int]()
    for word in _words(text):
        low, dots, high = word.partition("..")
        first, last = whole(low, most=most), whole(high if dots else low, most=most)
        if first > last:
            raise ValueError(f"{word!r} does not have the smaller number first")
        counts |= {first * 2**power for power in range((last // first).bit_length())}
    if not counts:
        raise ValueError("name at least one number")
    return sorted(counts)


def targets(
    faults: list[str], names: str, chips: str, most: int = MOST_CHIPS
) -> tuple[list[Hardware], list[int]]:
    """Read `--hardware`, a list such as `h100-sxm,tpu-v5p`, and `--chips`.

    Appends all faults, also where hardware has no slice.
    """
    named = dict.fromkeys(_words(names))
    wanted = [sheet for name in named if (sheet := collected(faults, hardware, name, "--hardware"))]
    if not named:
        faults.append("--hardware: name at least one chip")
    counts = collected(faults, partial(chip_counts, most=most), chips, "--chips") or []
    for sheet, count in itertools.product(wanted, counts):
        try:
            place(sheet, MeshShape((("data", count),)))
        except HardwareError as error:
            faults.append(f"--chips {count}: {error}")
    return wanted, counts


def without_peak(wanted: Sequence[Hardware], precisions: Sequence[str]) -> Iterator[str]:
    """Yield a fault for each precision for which hardware has no published peak."""
    for sheet in wanted:
        has = [one for one in PRECISIONS if peaks.peak(sheet.device_kind, one)]
        listed = f"it has {', '.join(has) or 'none'}"
        for precision in precisions:
            if precision not in has:
                yield f"--precision: {sheet.name} has no published peak for {precision}; {listed}"


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


Family = tuple[str, str, int, str]
"""Properties common to a chart's points: subject, family of meshes, batch and hardware."""


@dataclass(frozen=True)
class Point:
    """A prediction, or the reason why there is none."""

    curve: Curve
    hardware: str
    chips: int
    prediction: Prediction | None = None
    efficiency: float | None = None
    """Throughput per chip, relative to the fastest of the family on the fewest chips on which any
    fits; None where it does not fit."""
    efficiency_low: float | None = None
    """The lowest efficiency with no, all, or the calibrated share of communication hidden."""
    efficiency_high: float | None = None
    reason: str = ""
    """Empty if there is a prediction."""
    alike: int = 0
    """Number of other implementations with the same prediction; counted for the fastest only."""

    @property
    def family(self) -> Family:
        """The chart that it belongs to."""
        block = self.curve.block
        return block.subject, self.curve.mesh, block.batch, self.hardware

    @property
    def fitting(self) -> Prediction | None:
        """The prediction, unless the step's predicted memory exceeds the chip's."""
        return self.prediction if self.prediction and self.prediction.fits else None

    def row(self) -> dict[str, Any]:
        """Return the point's row in predictions.csv."""
        curve = self.curve
        cell = curve.cell(self.chips)
        return {
            "hardware": self.hardware, "chips": self.chips, "scaling": curve.scaling,
            "implementation": curve.implementation,
            **(cell.block.fields if cell else {**curve.block.fields, "mesh": None, "batch": None}),
            "reason": self.reason,
            "efficiency": self.efficiency, "efficiency_low": self.efficiency_low,
            "efficiency_high": self.efficiency_high,
            **(self.prediction.row() if self.prediction else {}),
        }  # fmt: skip


@dataclass(frozen=True)
class Projection:
    """All predictions of a run."""

    scaling: Scaling
    here: dict[str, Calibrated]
    """This machine's calibrations by subject (`mlp-base, fp32`), with the run's measured steps and
    their predictions from the other meshes."""
    points: list[Point]
    formulae: dict[Curve, Formula | str]
    """The formulae of curves, or the reasons why they have none."""
    missing: list[NoProgram]
    """Cells of the run whose programs are not available."""


def project(
    run: store.Run,
    wanted: Sequence[Hardware],
    chips: Sequence[int],
    read: Read,
    scaling: Scaling = "weak",
    precision: str | None = None,
    select: Callable[[str], bool] = lambda _: True,
) -> Projection:
    """Calibrate this machine by a run, and predict the run's steps on other hardware.

    Without a `precision`, steps keep the run's own. `select` selects the cells to project by name;
    all cells of the run serve for calibration. Raises BadInput if the run has no ceilings, no timed
    cell is selected, or hardware has no published peak for the precision.
    """
    ceilings = peaks.ceilings(run.block_rows)
    name = run.directory.name
    if not ceilings:
        lost = "; damaged launches are set aside, see the warnings" if run.damaged else ""
        raise BadInput([f"{name} has no ceilings: no launch has measured them{lost}"])
    cells = cell_table.build(run).rows
    times = {cell["cell"]: cell["step_s"] for cell in cells if cell["status"] == "ok"}
    rows = [row for row in run.decisive() if row["cell"] in times]
    selected = [Cell.of(row) for row in rows if select(row["cell"])]
    if not selected:
        raise BadInput([f"no timed cell of {name} is selected"])
    precisions = {precision or cell.block.options.precision for cell in selected}
    # Compiling takes minutes, so faults are reported first.
    if faults := [*without_peak(wanted, sorted(precisions))]:
        raise BadInput(faults)
    observations = defaultdict[str, list[Trial]](list)
    programs: list[Program] = []
    missing: list[NoProgram] = []
    for row in rows:
        program = from_row(row)
        if isinstance(program, NoProgram):
            missing.append(program)
            continue
        if select(row["cell"]):
            programs.append(program)
        try:
            step = work(program, of_ceilings(ceilings.get(row["block"]), program.mesh))
            observed = Trial(step, times[row["cell"]], str(program.mesh))
            observations[program.cell.block.subject].append(observed)
        except HardwareError as error:
            missing.append(NoProgram(program.cell, str(error)))
    curves = list(dict.fromkeys(_curves(programs, scaling, precision)))
    by_chips, formulae = program_formulae.programs_along(curves, chips, read)
    return Projection(
        scaling=scaling,
        here={subject: calibrate(steps) for subject, steps in observations.items()},
        points=_points(wanted, by_chips),
        formulae=formulae,
        missing=missing,
    )


def _curves(
    programs: Sequence[Program], scaling: Scaling, precision: str | None
) -> Iterator[Curve]:
    """Yield a curve for each implementation, family of meshes, and batch of its smallest mesh."""
    families = defaultdict[tuple[StepOptions, Curve], list[tuple[int, Curve]]](list)
    for program in programs:
        curve = Curve.through(step_on_hardware(program.cell, precision), scaling)
        alike = replace(curve, block=replace(curve.block, batch=0))
        families[program.cell.block.options, alike].append((program.mesh.size, curve))
    for members in families.values():
        fewest = min(devices for devices, _ in members)
        yield from (curve for devices, curve in members if devices == fewest)


def _points(
    sheets: Sequence[Hardware], programs: Mapping[Curve, Mapping[int, Program | str]]
) -> list[Point]:
    """Predict the programs on hardware; those that fit have efficiencies."""
    points = []
    for sheet, (curve, by_chips) in itertools.product(sheets, programs.items()):
        for chips, program in by_chips.items():
            found = program if isinstance(program, str) else predict_on(sheet, program)
            prediction, reason = (None, found) if isinstance(found, str) else (found, "")
            points.append(Point(curve, sheet.name, chips, prediction, reason=reason))
    known = [(point, own) for point in points if (own := point.fitting)]
    known.sort(key=lambda one: (one[0].chips, one[1].best_s))
    first = {point.family: prediction for point, prediction in reversed(known)}
    return [_efficient(point, first) for point in points]


def _efficient(point: Point, references: Mapping[Family, Prediction]) -> Point:
    """Return the point with its throughput per chip relative to its family's reference."""
    prediction = point.fitting
    if prediction is None:
        return point
    first = references[point.family]
    share = prediction.program.units / first.program.units
    share *= first.program.mesh.size / prediction.program.mesh.size
    best = share * first.best_s / prediction.best_s
    overlaps = [replace(prediction.calibration, exposed=exposed) for exposed in (0.0, 1.0)]
    every = [best, *(share * first.work.step_s(c) / prediction.work.step_s(c) for c in overlaps)]
    return replace(point, efficiency=best, efficiency_low=min(every), efficiency_high=max(every))
