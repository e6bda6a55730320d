"""Sentences about loss curves: their distance from the reference, and curves that end early."""

from collections.abc import Iterable, Sequence

from bench.analyse.loss_curves import EARLY, Curve, Training
from bench.records import numbers
from bench.records.arms import EXACT, IN_PARTS
from bench.records.rows import Manifest

_HOW = {IN_PARTS: "with its batch in parts", EXACT: "in float64"}


def sentence(trainings: Sequence[Training]) -> str:
    """Return the largest difference from the reference, and what rounding explains; or nothing."""
    known = [
        (curve.largest or 0.0, curve, training)
        for training in trainings
        if (curve := training.farthest) is not None
    ]
    if not known:
        return ""
    largest, curve, where = max(known, key=lambda each: each[0])
    steps = max(training.steps for training in trainings)
    text = (
        f"Loss curves of {numbers.count(steps, 'step')}: at most {numbers.scientific(largest)} "
        f"from the reference's ({curve.arm} in {where.block.name}"
    )
    if curve.beyond:
        text += f"; above {numbers.scientific(curve.tolerance)} from step {curve.beyond}"
    itself = [
        f"{numbers.scientific(each.largest)} {_HOW[each.arm]}{_cut_off(each, where)}"
        for each in where.yardsticks
        if each.largest is not None
    ]
    rounding = f" Rounding alone takes the reference {' and '.join(itself)}." if itself else ""
    return f"{text}).{rounding}"


def _cut_off(curve: Curve, training: Training) -> str:
    """Return the number of steps of a curve that ended before the longest one."""
    steps = len(curve.losses)
    return "" if steps == training.steps else f" (of {numbers.count(steps, 'step')})"


def parted(trainings: Iterable[Training]) -> str:
    """Name the curves whose differences rounding does not explain; empty if there are none."""
    curves = [(curve.early or 0.0, curve, each) for each in trainings for curve in each.parted]
    if not curves:
        return ""
    early, curve, where = max(curves, key=lambda each: each[0])
    return (
        f"{numbers.count(len(curves), 'cell')} left the reference's losses within {EARLY} steps by "
        f"more than the gate allows its own: at most {numbers.scientific(early)}, {curve.arm} in "
        f"{where.block.name}, where {numbers.scientific(curve.tolerance)} is allowed. In other "
        "arithmetic the reference stays within that, so rounding is unlikely to explain it."
    )


def unfinished(trainings: Sequence[Training], manifest: Manifest) -> str:
    """Name the requested curves that are missing or end early; empty if there are none."""
    if not manifest["config"].get("train_steps"):
        return ""
    missing = [
        (f"{training.block.name}/{curve.arm}", curve.reason)
        for training in trainings
        for curve in (training.reference, *training.yardsticks, *training.curves)
        if curve.reason
    ]
    if not missing:
        return ""
    name, reason = missing[0]
    return (
        f"{numbers.count(len(missing), 'loss curve')} ended before the last step, {name} for "
        f"instance: {reason}. The times are not affected."
    )
