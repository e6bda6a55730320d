"""Predictions and their basis, in sentences and as tables for pages and the terminal."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter

from bench.present.columns import Column, Figure, Table, formatted
from bench.project import published_results
from bench.project.calibration import Calibrated
from bench.project.hardware import Hardware
from bench.project.projection import Point, Projection
from bench.project.step_model import COMBINED_BYTES, Calibration, Prediction
from bench.records import numbers
from bench.records.grouping import grouped

SMALL_S = 1e-3
SMALL = (
    "Some steps are shorter than a millisecond. Launching kernels, which the model leaves out, may "
    "dominate them."
)
MEMORY = (
    "Memory is XLA's plan for the program compiled for CPU. The chip's own compiler may need more, "
    "or far less where it fuses attention: a third for gpt2-124m on an H200."
)
EXACT = 5e-6
"""Errors below this are rounding errors."""


def calibration(fitted: Calibration) -> str:
    """Describe the parameters of a calibration."""
    shares = sorted(fitted.shares.values()) or [fitted.share]
    low, high = (numbers.percent(share) for share in (shares[0], shares[-1]))
    share = round(1 - fitted.exposed, 4)
    hidden = numbers.percent(share) if share else "none"
    each = "" if low == high else f" ({low} to {high} by implementation)"
    return (
        f"Steps reach {numbers.percent(fitted.share)}{each} of the FLOP/s of the best matrix "
        f"products; {hidden} of the communication that could be hidden is; "
        f"every step has a fixed overhead of {numbers.si(fitted.overhead_s, 's')}."
    )


def error(calibrated: Calibrated) -> str:
    """Describe the errors of this machine's cross-validation."""
    groups = len(calibrated.errors)
    if not groups:
        return "Only one mesh was measured, so the error of predictions is unknown."
    errors = [trial.ratio - 1 for trial in calibrated.tried]
    half = numbers.percent(statistics.median(map(abs, errors)))
    spread = calibrated.calibration.spread
    few = f": it takes three meshes, not {groups}" if spread is None else ""
    return (
        "Each mesh was left out and predicted from the others: half of these predictions are "
        f"within {half} of the measured step times, and their errors range from "
        f"{formatted(min(errors), '+percent')} to {formatted(max(errors), '+percent')}. "
        f"The 95 % interval of a prediction is {factor(spread)}{few}."
    )


def factor(spread: float | None) -> str:
    """Return `a factor of 1.50 either way`, from a spread in logs, or `unknown`."""
    return "unknown" if spread is None else f"a factor of {math.exp(spread):.2f} either way"


def hardware(sheet: Hardware) -> str:
    """Describe the measurements and assumptions behind predictions for a chip that is not here."""
    calibrated = published_results.calibration_of_chip(sheet.name)
    if own := published_results.measured_on(sheet.name):
        basis = f"{own} published models on this chip, each left out in turn"
    else:
        basis = (
            f"published models on other {published_results.kind(sheet.name)}s, because too few are "
            f"on this chip, and on the errors for {len(calibrated.errors)} chips, each predicted "
            "from the others of its kind"
        )
    reach = sheet.achievable
    return (
        f"{sheet.name}: the predictions rest on {basis}. The 95 % interval of step times is "
        f"{factor(calibrated.calibration.spread)}. The chip's best matrix products reach "
        f"{numbers.percent(reach.value)} of the peak "
        f"({'assumed: ' if reach.assumed else ''}{reach.says}). "
        f"{calibration(calibrated.calibration)} The model assumes that this step uses the chip as "
        "well as large language models do, that XLA combines small collectives that nothing waits "
        f"for, up to {numbers.bytes_(COMBINED_BYTES)}, that links have their full bandwidth, and "
        "that launching kernels takes no extra time."
    )


def interval(prediction: Prediction) -> str:
    """Return `1.20-3.40 ms`, in the unit of the predicted time."""
    if not math.isfinite(prediction.high_s):
        return f"at least {numbers.si(prediction.low_s, 's')}"
    return numbers.range_si(prediction.low_s, prediction.high_s, "s", like=prediction.best_s)


def bound(prediction: Prediction) -> str:
    """Name the longest part: `compute`, `all-reduce over data, between domains`."""
    limits = {"inside": ", inside a domain", "between": ", between domains", "latency": ", latency"}
    return prediction.binds + limits.get(prediction.limit, "")


def small(predictions: Sequence[Prediction]) -> list[str]:
    """Return a remark if any of the steps is small."""
    return [SMALL] if any(each.best_s < SMALL_S for each in predictions) else []


def formulae(projection: Projection) -> list[str]:
    """Describe the source of programs for meshes that were not compiled."""
    names = defaultdict[str, list[str]](list)
    for curve, formula in projection.formulae.items():
        if isinstance(formula, str):
            text = f"No formula holds ({formula}), so meshes are compiled one by one if possible"
        else:
            first, second, *others = (one.mesh.axis(curve.first) for one in formula.programs)
            checked = ", ".join(map(str, others))
            most = numbers.percent(formula.error)
            off = "only by rounding" if formula.error < EXACT else f"by {most} at most"
            text = (
                f"By a formula from {curve.first}={first} and {second}, whose figures at {checked} "
                f"differ from those of the compiled programs {off}"
            )
        subject, batch = curve.block.subject, curve.block.batch
        names[text].append(f"{subject}, {curve.implementation}, {curve.mesh}, batch {batch}")
    return [f"{text}: {'; '.join(own)}." for text, own in names.items()]


def fastest(points: Sequence[Point]) -> list[Point]:
    """Return the fastest prediction that fits for each number of chips, or why there is none."""
    found = []
    for _, own in sorted(grouped((point.chips, point) for point in points).items()):
        times = [p.fitting.best_s if p.fitting else math.inf for p in own]
        if math.isfinite(best := min(times)):
            alike = sum(seconds <= 1.005 * best for seconds in times) - 1
            found.append(replace(own[times.index(best)], alike=alike))
        else:
            reason = next((p.reason for p in own if p.reason), "none fits in memory")
            found.append(replace(own[0], prediction=None, efficiency=None, reason=reason))
    return found


STEP = Column("best_s", "Step time", "predicted", "s")
INTERVAL = Column("interval", "95 % interval", format="s", value=lambda one: Figure(interval(one)))
MFU = Column("mfu", "MFU", format="percent")
BOUND = Column("bound", "Bound by", value=bound)
"""Columns of predictions."""


def _of_point(column: Column) -> Column:
    """Make a column of predictions one of points, which may have none."""
    return replace(column, value=lambda point: point.prediction and column.of(point.prediction))


def _implementation(point: Point) -> str:
    if point.prediction is None:
        return "no prediction"
    return point.curve.implementation + (f" +{point.alike}" if point.alike else "")


def _program(prediction: Prediction) -> Figure:
    return Figure(prediction.program.read, str(prediction.program.mesh))


def _memory(prediction: Prediction) -> str:
    used, capacity = prediction.program.memory_bytes, prediction.work.machine.memory_bytes
    return f"{numbers.bytes_(used)} of {numbers.bytes_(capacity)}"


PREDICTIONS = (
    Column("chips", "Chips", format="count"),
    _of_point(STEP),
    _of_point(INTERVAL),
    Column("implementation", "Fastest", "+ equally fast", value=_implementation),
    Column("efficiency", "Efficiency", "nothing to all hidden", "percent",
           span=("efficiency_low", "efficiency_high")),
    _of_point(MFU),
    replace(BOUND, value=lambda p: bound(p.prediction) if p.prediction else p.reason),
    _of_point(Column("memory", "Memory per chip", value=_memory)),
    _of_point(Column("program", "Program", "mesh", value=_program)),
)  # fmt: skip


def predictions(title: str, points: Sequence[Point]) -> Table:
    """Return the table of the fastest prediction for each number of chips."""
    return Table(title, PREDICTIONS, fastest(points), remarks=remarks(points))


def remarks(points: Sequence[Point]) -> list[str]:
    """Return on which chips implementations are not predicted, and whether steps are small."""
    best = {row.chips: row.prediction for row in fastest(points) if row.prediction}
    gaps = grouped(
        (point.curve.implementation, point)
        for point in sorted(points, key=attrgetter("chips"))
        if point.chips in best and point.prediction is None
    )
    alike = grouped(((own[0].reason, *(p.chips for p in own)), name) for name, own in gaps.items())
    return [
        f"On {', '.join(map(str, chips))} chips, the fastest is chosen without {', '.join(names)}, "
        f"for which there is no prediction (on {chips[0]}: {reason})."
        for (reason, *chips), names in alike.items()
    ] + small([*best.values()])


MEASURED = (
    Column("implementation", "Implementation", value=lambda row: row.cell.implementation),
    Column("mesh", "Mesh", value=lambda row: str(row.mesh)),
    Column("batch", "Batch", format="count", value=lambda row: row.cell.block.batch),
    Column("measured_s", "Step time", "measured", "s"),
    Column("predicted_s", "Predicted", "from the other meshes", "s"),
    Column("error", "Error", format="+percent", value=lambda row: row.ratio - 1),
)


def cross_validation(projection: Projection) -> list[Table]:
    """Return, for each subject, its measured steps and their predictions from the other meshes."""
    tables = []
    for subject, own in projection.here.items():
        facts = [calibration(own.calibration), error(own)]
        rows = sorted(own.tried, key=lambda r: (r.mesh.size, str(r.mesh), r.cell.implementation))
        tables.append(Table(subject, MEASURED, rows, facts))
    return tables


PUBLISHED = (
    Column("name", "Model", detail=itemgetter("hardware")),
    Column("chips", "Chips", "", "count", lambda r: r["mesh"].size, lambda r: str(r["mesh"])),
    Column("measured_s", "Step time", "published", "s"),
    Column("predicted_s", "Predicted", "from the others", "s"),
    Column("error", "Error", format="+percent",
           detail=lambda row: "" if row["within"] else "outside the interval"),
    Column("measured_efficiency", "Efficiency", "published", "percent"),
    Column("predicted_efficiency", "Predicted efficiency", format="percent"),
)  # fmt: skip


def published() -> Table:
    """Return the table of published results and their predictions."""
    rows = published_results.compare()
    misses = [row["name"] for row in rows if not row["within"]]
    errors = [abs(row["error"]) for row in rows]
    half, largest = (numbers.percent(e) for e in (statistics.median(errors), max(errors)))
    outside = f": {', '.join(dict.fromkeys(misses))}" if misses else ""
    fact = (
        f"Half of the predictions are within {half} of the published step times, and all within "
        f"{largest}. Efficiency is relative to the fewest chips of the same model. {len(misses)} "
        f"of {len(rows)} lie outside the interval that the errors for the other models or chips "
        f"give{outside}."
    )
    return Table("Published results and predictions", PUBLISHED, rows, [fact])
