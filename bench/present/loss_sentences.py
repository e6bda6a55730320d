"""Loss curves in sentences: how far they are from the reference, and which end early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.analyse.loss_curves import EARLY
from bench.records import numbers
from bench.records.arms import EXACT, IN_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.analyse.loss_curves import Curve, Training
    from bench.records.rows import Manifest

_HOW = {IN_PARTS: "with its batch in parts", EXACT: "in float64"}


def sentence(trainings: Sequence[Training]) -> str:
    """How far curves are from the reference at most, and what rounding does; empty without any."""
    known = [
        (one.largest or 0.0, one, training)
        for training in trainings
        if (one := training.farthest) is not None
    ]
    if not known:
        return ""
    largest, one, where = max(known, key=lambda found: found[0])
    steps = max(training.steps for training in trainings)
    text = (
        f"Loss curves of {numbers.count(steps, 'step')}: at most {numbers.scientific(largest)} "
        f"from the reference's ({one.arm} in {where.block.name}"
    )
    if one.beyond:
        text += f"; above {numbers.scientific(one.tolerance)} from step {one.beyond}"
    itself = [
        f"{numbers.scientific(each.largest)} {_HOW[each.arm]}{_cut_off(each, where)}"
        for each in where.yardsticks
        if each.largest is not None
    ]
    rounding = f" Rounding alone takes the reference {' and '.join(itself)}." if itself else ""
    return f"{text}).{rounding}"


def _cut_off(curve: Curve, training: Training) -> str:
    """Of how many steps a curve is that ended before the longest."""
    steps = len(curve.losses)
    return "" if steps == training.steps else f" (of {numbers.count(steps, 'step')})"


def parted(trainings: Iterable[Training]) -> str:
    """Curves that rounding does not explain; empty if there are none."""
    found = [(one.early or 0.0, one, training) for training in trainings for one in training.parted]
    if not found:
        return ""
    early, one, where = max(found, key=lambda each: each[0])
    return (
        f"{numbers.count(len(found), 'cell')} left the reference's losses within {EARLY} steps by "
        f"more than the gate allows its own: at most {numbers.scientific(early)}, {one.arm} in "
        f"{where.block.name}, where {numbers.scientific(one.tolerance)} is allowed. The reference "
        "in other arithmetic stays within that, so that rounding may not explain it."
    )


def unfinished(trainings: Sequence[Training], manifest: Manifest) -> str:
    """Where curves were asked for, and are missing or end early; empty if they do not."""
    if not manifest["config"].get("train_steps"):
        return ""
    missing = [
        (f"{training.block.name}/{one.arm}", one.reason)
        for training in trainings
        for one in (training.reference, *training.yardsticks, *training.curves)
        if one.reason
    ]
    if not missing:
        return ""
    name, reason = missing[0]
    return (
        f"{numbers.count(len(missing), 'loss curve')} ended before the last step, {name} for "
        f"instance: {reason}. Times are not touched by it."
    )
