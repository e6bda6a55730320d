"""Predictions in tables, for pages and the terminal."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.present.columns import Column, Figure, Table
from bench.project import prediction_sentences as sentences
from bench.project import published_results, scaling_book_answers
from bench.project.projection import Measured, Point, Projection
from bench.project.step_model import Prediction
from bench.records import numbers


@dataclass(frozen=True)
class Fastest:
    """The fastest prediction for a number of chips, among those that fit."""

    chips: int
    point: Point | None
    alike: int
    """Other implementations whose predicted time is the same."""
    reason: str
    """Why there is none."""

    @property
    def prediction(self) -> Prediction | None:
        """The prediction, if there is one."""
        return None if self.point is None else self.point.prediction


def fastest(points: Sequence[Point]) -> list[Fastest]:
    """The fastest prediction for each number of chips."""
    groups = defaultdict[int, list[Point]](list)
    for point in points:
        groups[point.chips].append(point)
    found = []
    for chips, own in sorted(groups.items()):
        times = {i: p.prediction.best_s for i, p in enumerate(own) if p.fits and p.prediction}
        if times:
            best = min(times, key=lambda i: times[i])
            alike = sum(seconds <= 1.005 * times[best] for seconds in times.values()) - 1
            found.append(Fastest(chips, own[best], alike, ""))
        else:
            reason = next((p.reason for p in own if p.reason), "none fits in memory")
            found.append(Fastest(chips, None, 0, reason))
    return found


def of_prediction(get: Callable[[Prediction], Any]) -> Callable[[Any], Any]:
    """A column's value from the row's prediction; None if it has none."""
    return lambda row: None if row.prediction is None else get(row.prediction)


STEP = Column("step_s", "Step time", "predicted", "s", value=of_prediction(lambda p: p.best_s))
INTERVAL = Column(
    "interval",
    "95 % interval",
    format="s",
    value=of_prediction(lambda p: Figure(sentences.interval(p))),
)
MFU = Column("mfu", "MFU", format="percent", value=of_prediction(lambda p: p.mfu))
BOUND = Column("bound", "Bound by", value=of_prediction(sentences.bound))


def _implementation(row: Fastest) -> Figure:
    if row.point is None:
        return Figure("no prediction", row.reason)
    more = f" +{row.alike}" if row.alike else ""
    return Figure(f"{row.point.curve.implementation}{more}")


def _efficiency(row: Fastest) -> Figure | None:
    point = row.point
    if point is None or point.efficiency is None:
        return None
    low, high = 100 * (point.efficiency_low or 0.0), 100 * (point.efficiency_high or 0.0)
    # A tenth of a percent is not shown.
    note = "" if high - low < 0.1 else f"{low:.0f}\N{EN DASH}{high:.0f}"  # noqa: PLR2004
    return Figure(numbers.percent(point.efficiency), note)


def _memory(prediction: Prediction) -> str:
    capacity = prediction.work.machine.memory_bytes
    used = numbers.bytes_(prediction.program.memory_bytes)
    return used if capacity is None else f"{used} of {numbers.bytes_(capacity)}"


def _program(prediction: Prediction) -> Figure:
    return Figure(prediction.program.read, str(prediction.program.mesh))


PREDICTIONS = (
    Column("chips", "Chips", format="count"),
    STEP,
    INTERVAL,
    Column("implementation", "Fastest", "+ equally fast", value=_implementation),
    Column("efficiency", "Efficiency", "nothing to all hidden", "percent", _efficiency),
    MFU,
    BOUND,
    Column("memory", "Memory per chip", value=of_prediction(_memory)),
    Column("program", "Program", "mesh", value=of_prediction(_program)),
)


def predictions(title: str, points: Sequence[Point]) -> Table:
    """The fastest prediction for each number of chips."""
    return Table(title, PREDICTIONS, fastest(points), remarks=remarks(points))


def remarks(points: Sequence[Point]) -> list[str]:
    """Which implementations drop out from which number of chips on; and whether steps are small."""
    best = {row.chips: row.prediction for row in fastest(points) if row.prediction}
    missing = defaultdict[tuple[int, str], list[str]](list)
    seen: set[str] = set()
    for point in sorted(points, key=lambda point: point.chips):
        name = point.curve.implementation
        if point.chips in best and point.prediction is None and name not in seen:
            seen.add(name)
            missing[point.chips, point.reason].append(name)
    return [
        f"From {chips} chips on, the fastest is chosen from fewer implementations: "
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not predicted there ({reason})."
        for (chips, reason), names in missing.items()
    ] + sentences.remarks([*best.values()])


def _error(row: Any) -> Figure | None:
    if row.predicted_s is None:
        return None
    note = "" if getattr(row, "within", True) else "outside the interval"
    return Figure(sentences.signed(row.predicted_s / row.measured_s - 1), note)


ERROR = Column("error", "Error", format="percent", value=_error)


MEASURED = (
    Column("implementation", "Implementation", value=lambda row: row.program.implementation),
    Column("mesh", "Mesh", value=lambda row: str(row.program.mesh)),
    Column("batch", "Batch", format="count", value=lambda row: row.program.batch),
    Column("measured_s", "Step time", "measured", "s"),
    Column("predicted_s", "Predicted", "from the other meshes", "s"),
    ERROR,
)


def cross_validation(projection: Projection) -> list[Table]:
    """For each subject, its measured steps and what the other meshes predict for them."""

    def order(row: Measured) -> tuple[int, str, str]:
        mesh = row.program.mesh
        return mesh.size, str(mesh), row.program.implementation

    return [
        Table(
            subject,
            MEASURED,
            sorted((row for row in projection.measured if row.subject == subject), key=order),
            facts=[sentences.calibration(own.calibration), sentences.error(own)],
        )
        for subject, own in projection.here.items()
    ]


PUBLISHED = (
    Column("name", "Model", detail=lambda row: row.hardware),
    Column("chips", "Chips", format="count", detail=lambda row: row.mesh),
    Column("measured_s", "Step time", "published", "s"),
    Column("predicted_s", "Predicted", "from the others", "s"),
    ERROR,
    Column("measured_efficiency", "Efficiency", "published", "percent"),
    Column("predicted_efficiency", "Predicted efficiency", format="percent"),
)


def published() -> Table:
    """Published results and predictions."""
    rows = published_results.compare()
    _, others = published_results.published()
    misses = [row.name for row in rows if not row.within]
    errors = [abs(row.predicted_s / row.measured_s - 1) for row in rows]
    half, largest = (numbers.percent(e) for e in (statistics.median(errors), max(errors)))
    outside = f": {', '.join(dict.fromkeys(misses))}" if misses else ""
    fact = (
        f"Half of the predictions are within {half} of the published step times, and all within "
        f"{largest}. Efficiency is relative to the fewest chips of the same model. {len(misses)} "
        f"of {len(rows)} lie outside the interval that the errors for the other models or chips "
        f"give{outside}."
    )
    remarks = [f"Not predicted: {one.name} ({one.says}), because {one.why}." for one in others]
    return Table("Published results and predictions", PUBLISHED, rows, [fact], remarks)


def _four_digits(value: float) -> Figure:
    return Figure(numbers.significant(value, 4))


ANSWERS = (
    Column("question", "Question"),
    Column("book", "The scaling book", "", "count", lambda row: _four_digits(row.book)),
    Column("ours", "Lockstep", "", "count", lambda row: _four_digits(row.ours)),
)


def answers() -> Table:
    """The scaling book's worked answers and the model's."""
    return Table("Worked answers of the scaling book", ANSWERS, [*scaling_book_answers.answers()])
