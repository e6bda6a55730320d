"""Whether an arm still trained while it was timed; checked once, after the last round.

Steps on NaNs and infinities may take another time than steps on numbers, and a step whose loss
grows without bound does not do what was proved at its start. Arms train on one batch again and
again, so the loss of a right step falls, or stays where the model can do no better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.records.numbers import count
from bench.worker.time.clock import Arm

FACTOR = 10.0
"""A loss diverges if it is this many times the first one. For losses of any sign: if it has risen
by `FACTOR - 1` times the first one's absolute value. A first loss of 0 says nothing."""


def why_diverged(arm: Arm, first: float) -> str:
    """Say what is wrong with an arm's loss after so many steps; empty if nothing is.

    `first` is the loss before the first update.
    """
    useless = f"its times, of {arm.steps} steps in all, are not those of a step that trains"
    for steps, loss in arm.losses:
        # A step may keep its loss in the state and donate it; the last one is always there.
        if loss.is_deleted():
            continue
        value = float(loss)
        if not math.isfinite(value):
            return f"the loss is {value} after {count(steps, 'step')}: {useless}"
        if first and value - first > (FACTOR - 1) * abs(first):
            return (
                f"the loss diverges: {value:.3g} after {count(steps, 'step')}, and {first:.3g} "
                f"before the first: {useless}"
            )
    return ""


def diverged(arms: Sequence[Arm], first: float) -> dict[str, str]:
    """The reason for each arm that diverged. If all did, the workload is to blame."""
    reasons = {arm.name: why for arm in arms if (why := why_diverged(arm, first))}
    if len(reasons) == len(arms) > 1:
        note = "; so do all arms of the block: the workload itself does not train for so long"
        return {name: why + note for name, why in reasons.items()}
    return reasons
