"""Checks, once after the last round, that each arm still trained while it was timed.

Steps on NaNs and infinities may run at another speed than steps on finite numbers, and a step whose
loss grows without bound no longer does what the gate proved. Arms train on one batch repeatedly, so
a right step's loss falls, or stays at the best that the model can reach.
"""

import math
from collections.abc import Mapping, Sequence

from bench.records.numbers import count
from bench.worker.time.clock import Arm

FACTOR = 10.0
"""A loss diverges at this multiple of the first loss. To cover losses of any sign, the limit is a
rise by `FACTOR - 1` times the first loss's absolute value. A first loss of 0 sets no limit."""


def why_diverged(arm: Arm, first: float) -> str:
    """Describe what is wrong with an arm's losses so far; empty if nothing is.

    `first` is the loss before the first update.
    """
    useless = f"its times, of {arm.steps} steps in all, are not those of a step that trains"
    for steps, loss in arm.losses:
        # A step may keep its loss in the state and donate it; the last loss always exists.
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


def diverged(arms: Sequence[Arm], first: float, found: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the reason for each arm that diverged; if all did, the workload is to blame.

    What earlier checks have found is the reason of the arms that it names.
    """
    whys = {arm.name: why_diverged(arm, first) for arm in arms}
    reasons = {name: found.get(name, why) for name, why in whys.items() if why}
    if len(reasons) == len(arms) > 1:
        note = "; all arms of the block diverge: the workload itself does not train for that long"
        return {name: why + note for name, why in reasons.items()}
    return reasons
