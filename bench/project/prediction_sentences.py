"""Sentences on predictions and their basis."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from bench.present.columns import formatted
from bench.project import published_results
from bench.project.calibration import Calibrated
from bench.project.hardware import Hardware
from bench.project.projection import Projection
from bench.project.step_model import COMBINED_BYTES, Calibration, Prediction
from bench.records import numbers

SMALL_S = 1e-3
SMALL = (
    "Some steps are shorter than a millisecond. Launching kernels, which the model leaves out, may "
    "dominate them."
)
MEMORY = (
    "Memory is XLA's plan for the program compiled for CPU; the chip's own compiler may need more "
    "or less."
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
    calibrated = published_results.elsewhere(sheet.name)
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


def remarks(predictions: Sequence[Prediction]) -> list[str]:
    """Return a remark if any of the steps is small."""
    return [SMALL] if any(each.best_s < SMALL_S for each in predictions) else []


def formulae(projection: Projection) -> list[str]:
    """Describe the source of programs for meshes that were not compiled."""
    names = defaultdict[str, list[str]](list)
    for curve, formula in projection.formulae.items():
        if isinstance(formula, str):
            text = f"No formula holds, so meshes are compiled one by one if possible: {formula}"
        else:
            first, second, *others = (one.mesh.axis(curve.first) for one in formula.programs)
            checked = ", ".join(map(str, others))
            most = numbers.percent(formula.error)
            off = "only by rounding" if formula.error < EXACT else f"by {most} at most"
            text = (
                f"By a formula from {curve.first}={first} and {second}, whose figures at {checked} "
                f"differ from those of the compiled programs {off}"
            )
        about = f"{curve.subject}, {curve.implementation}, {curve.mesh}, batch {curve.batch}"
        names[text].append(about)
    return [f"{text}: {'; '.join(own)}." for text, own in names.items()]
