"""Predictions in sentences and tables of text. Imports no jax."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from bench.present.columns import Figure
from bench.present.text_tables import Row, Table
from bench.project import published_checks
from bench.project.calibration import Calibrated
from bench.project.hardware import Hardware
from bench.project.machines import achievable
from bench.project.projection import Measured, Point, Projection
from bench.project.step_model import COMBINED_BYTES, Calibration, Prediction
from bench.records import numbers

SMALL_S = 1e-3
"""Steps below which kernels' launches, which no sheet has, may be most of it."""
SMALL = "Steps below a millisecond: launching kernels, which no sheet has, may take longer."

MEMORY = (
    "Memory is what XLA plans for the program on CPU; the chip's own compiler may need less or "
    "more."
)

EXACT = 5e-6
"""Errors below are those of rounding."""


def times(factor: float) -> str:
    """`within a factor of 1.5`, of a spread in logs."""
    return f"within a factor of {math.exp(factor):.2f}"


def calibration(found: Calibration) -> str:
    """What was fitted."""
    shares = sorted(found.shares.values()) or [found.share]
    low, high = (numbers.percent(share) for share in (shares[0], shares[-1]))
    each = "" if low == high else f" ({low} to {high} by implementation)"
    return (
        f"Steps reach {numbers.percent(found.share)}{each} of the best matrix products; "
        f"{numbers.percent(found.exposed)} of the "
        "communication that could be hidden is not; each step takes "
        f"{numbers.si(found.overhead_s, 's')} beside."
    )


def error(found: Calibrated) -> str:
    """How far predictions of what was left out were off."""
    groups = len(found.errors)
    if not groups:
        return "Only one mesh was measured, so nothing could be left out: the error is unknown."
    errors = [one.error for one in found.tried]
    half = numbers.percent(statistics.median(map(abs, errors)))
    span = f"{signed(min(errors))} to {signed(max(errors))}"
    told = (
        f"Each mesh left out and predicted from the others: half are within {half} of the measured "
        f"step times, all from {span}."
    )
    if found.calibration.spread is None:
        return f"{told} {groups} meshes are too few for an interval: three are needed."
    return f"{told} A prediction's 95 % interval is {times(found.calibration.spread)}."


def signed(share: float) -> str:
    """`+12.3 %`."""
    return numbers.signed(share, numbers.percent(share))


def hardware(sheet: Hardware) -> str:
    """What predictions for hardware that is not here rest on: what is measured, what is assumed."""
    found = published_checks.elsewhere(sheet.name)
    own = published_checks.measured_on(sheet.name)
    whose = f"{own} published models on this chip, each left out in turn"
    if not own:
        kind = published_checks.kind(sheet.name)
        whose = (
            f"published models on the other {kind}s, since too few are on this chip; the interval "
            f"is that of {len(found.errors)} chips, each predicted from the others of its kind"
        )
    reach = achievable(sheet.name)
    spread = found.calibration.spread
    width = "unknown" if spread is None else times(spread)
    return (
        f"{sheet.name}. Measured by others: {whose}; the 95 % interval of step times is {width}. "
        f"Its best matrix products reach {numbers.percent(reach.value)} of the peak "
        f"({'assumed: ' if reach.assumed else ''}{reach.says}). {calibration(found.calibration)} "
        "Assumed: that this step reaches a like share as those of large language models do, that "
        "XLA combines small collectives that nothing waits for up to "
        f"{numbers.bytes_(COMBINED_BYTES)}, that links have their full bandwidth, and that "
        "launching kernels takes no more than that."
    )


def interval(found: Prediction) -> str:
    """`1.2 - 3.4 ms`."""
    if not math.isfinite(found.high_s):
        return f"at least {numbers.si(found.low_s, 's')}"
    return numbers.range_si(found.low_s, found.high_s, "s")


def binds(found: Prediction) -> str:
    """What takes longest: `compute`, `all-reduce over data, between domains`."""
    limits = {"inside": ", inside a domain", "between": ", between domains", "latency": ", latency"}
    return found.binds + limits.get(found.limit, "")


def memory(found: Prediction) -> str:
    """`12 GiB of 75 GiB`."""
    used = numbers.bytes_(found.memory_bytes)
    if found.capacity_bytes is None:
        return used
    return f"{used} of {numbers.bytes_(found.capacity_bytes)}"


def fastest(points: Sequence[Point]) -> tuple[Point | None, list[str]]:
    """The fastest prediction that fits, and implementations of which the same is predicted."""
    known = [point for point in points if point.fits]
    if not known:
        return None, []
    best = min(known, key=lambda p: p.prediction.best_s if p.prediction else math.inf)
    limit = best.prediction.best_s * 1.005 if best.prediction else 0.0
    alike = [p.curve.implementation for p in known if p.prediction and p.prediction.best_s <= limit]
    return best, alike


def why_none(points: Sequence[Point]) -> str:
    """Why there is no fastest one."""
    return next((point.reason for point in points if point.reason), "none fits in memory")


def by_chips(points: Sequence[Point]) -> list[tuple[int, list[Point]]]:
    """Points of a chart by their number of chips."""
    groups: defaultdict[int, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.chips].append(point)
    return sorted(groups.items())


def table(title: str, points: Sequence[Point]) -> Table:
    """The fastest on each number of chips."""
    rows = []
    for chips, own in by_chips(points):
        best, alike = fastest(own)
        if best is None or best.prediction is None:
            none = [Figure("no prediction"), *[Figure("")] * 6]
            rows.append(Row(str(chips), none, note=why_none(own)))
            continue
        found = best.prediction
        more = f"and {len(alike) - 1} alike" if len(alike) > 1 else ""
        efficiency = numbers.MISSING if best.efficiency is None else _span(best)
        rows.append(
            Row(
                str(chips),
                [
                    Figure(numbers.si(found.best_s, "s"), interval(found)),
                    Figure(alike[0], more),
                    Figure(efficiency),
                    Figure(numbers.MISSING if found.mfu is None else numbers.percent(found.mfu)),
                    Figure(binds(found)),
                    Figure(memory(found)),
                    Figure(found.program.read, str(found.program.mesh)),
                ],
            )
        )
    headings = [
        Figure("Chips"),
        Figure("Step, predicted", "95 % interval"),
        Figure("Fastest"),
        Figure("Efficiency", "nothing to all hidden"),
        Figure("MFU"),
        Figure("Binds"),
        Figure("Memory a chip"),
        Figure("Program", "mesh"),
    ]
    return Table(title, headings, rows, [], remarks(points))


def remarks(points: Sequence[Point]) -> list[str]:
    """What is to be said of the fastest on each number of chips."""
    groups = by_chips(points)
    shown = [(chips, own, best) for chips, own in groups if (best := fastest(own)[0])]
    small = any(best.prediction and best.prediction.best_s < SMALL_S for _, _, best in shown)
    fewer = _fewer([(chips, own) for chips, own, _ in shown])
    return [*fewer, *([SMALL] if small else [])]


def _fewer(groups: Sequence[tuple[int, Sequence[Point]]]) -> list[str]:
    """Which implementations are not among those that the fastest is of, from which number on.

    Args:
      groups: points by numbers of chips on which there is a fastest one.
    """
    missing: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    said: set[str] = set()
    for chips, points in groups:
        for point in points:
            name = point.curve.implementation
            if point.prediction is None and name not in said:
                said.add(name)
                missing[chips, point.reason].append(name)
    return [
        f"The fastest is one of fewer from {chips} chips: {', '.join(names)} "
        f"{'is' if len(names) == 1 else 'are'} not predicted there ({reason})."
        for (chips, reason), names in missing.items()
    ]


def _span(point: Point) -> str:
    low, high = point.efficiency_low or 0.0, point.efficiency_high or 0.0
    best = numbers.percent(point.efficiency or 0.0)
    if high - low < 0.001:  # noqa: PLR2004 - a tenth of a percent is not shown
        return best
    return f"{best} ({100 * low:.0f}\N{EN DASH}{100 * high:.0f})"


def formulae(found: Projection) -> list[str]:
    """By which programs of meshes that were not compiled are known, or why they are not."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    for one in found.formulae:
        curve = one.curve
        name = f"{curve.subject}, {curve.implementation}, {curve.mesh}, batch {curve.batch}"
        if one.formula is None:
            said[
                f"No formula, so that meshes are compiled one by one, if they can be: {one.reason}"
            ].append(name)
            continue
        fitted = " and ".join(map(str, one.formula.fitted))
        checked = ", ".join(str(n) for n in sorted({check.size for check in one.formula.checks}))
        off = f"no figure is more than {numbers.percent(one.error)} off"
        if one.error < EXACT:
            off = "every figure is the same"
        said[
            f"By formula, from {curve.first}={fitted}; beside programs compiled at {checked} {off}"
        ].append(name)
    return [f"{words}: {'; '.join(names)}." for words, names in said.items()]


def left_out(found: Projection) -> list[Table]:
    """Measured steps beside what is predicted for them without their mesh, by subject."""
    tables = []
    for subject, calibrated in found.here.items():
        rows = []
        own = [one for one in found.measured if one.subject == subject]
        for one in sorted(own, key=_place):
            program = one.program
            off = (
                numbers.MISSING
                if one.predicted_s is None
                else signed(one.predicted_s / one.measured_s - 1)
            )
            rows.append(
                Row(
                    program.implementation,
                    [
                        Figure(str(program.mesh)),
                        Figure(str(program.batch)),
                        Figure(numbers.si(one.measured_s, "s")),
                        Figure(numbers.si(one.predicted_s, "s")),
                        Figure(off),
                    ],
                )
            )
        headings = ["Implementation", "Mesh", "Batch", "Measured", "Predicted without it", "Off"]
        facts = [calibration(calibrated.calibration), error(calibrated)]
        tables.append(Table(subject, [Figure(h) for h in headings], rows, facts))
    return tables


def _place(one: Measured) -> tuple[int, str, str]:
    """By which measured steps are in order."""
    mesh = one.program.mesh
    return mesh.size, str(mesh), one.program.implementation


def published() -> Table:
    """Public results beside predictions."""
    rows, found = [], published_checks.beside()
    for one in found:
        efficiency = [
            numbers.MISSING if share is None else numbers.percent(share)
            for share in (one.published_efficiency, one.predicted_efficiency)
        ]
        rows.append(
            Row(
                one.name,
                [
                    Figure(str(one.chips), one.mesh),
                    Figure(numbers.si(one.published_s, "s")),
                    Figure(numbers.si(one.predicted_s, "s")),
                    Figure(
                        signed(one.predicted_s / one.published_s - 1),
                        "" if one.within else "outside of the interval",
                    ),
                    Figure(efficiency[0]),
                    Figure(efficiency[1]),
                ],
                note=one.hardware,
            )
        )
    headings = [
        "Published", "Chips", "Step", "Predicted without it", "Off", "Efficiency",
        "Efficiency, predicted",
    ]  # fmt: skip
    _, others = published_checks.published()
    remarks = [f"Not predicted: {one.name} ({one.says}): {one.why}." for one in others]
    misses = [one.name for one in found if not one.within]
    errors = [abs(one.predicted_s / one.published_s - 1) for one in found]
    half, largest = (numbers.percent(e) for e in (statistics.median(errors), max(errors)))
    outside = f": {', '.join(dict.fromkeys(misses))}" if misses else ""
    facts = [
        (
            f"Half are within {half} of what is published, all within {largest}. Efficiency is to "
            f"the fewest chips of the same model. {len(misses)} of {len(rows)} lie outside the "
            f"interval that the errors of the other models or chips give{outside}."
        )
    ]
    return Table(
        "Public results beside predictions", [Figure(h) for h in headings], rows, facts, remarks
    )


def answers() -> Table:
    """The scaling book's worked answers beside ours."""
    rows = [
        Row(
            one.question,
            [Figure(numbers.significant(one.book, 4)), Figure(numbers.significant(one.ours, 4))],
        )
        for one in published_checks.answers()
    ]
    headings = [Figure("Question"), Figure("The scaling book"), Figure("Here")]
    return Table("Worked answers of the scaling book", headings, rows, [])
