"""Names of mistakes, by the numbers that they make, and descriptions of wrong numbers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from bench.records.row_parts import AS_TIMED, OWN, TIMED_SGD

MATCH = 1e-6
"""Relative distance below which a hypothesis is accepted."""

UNKNOWN = "the gradients are wrong, and no known mistake explains them"
OPTIMIZER = "the gradients are right under SGD, but the optimizer is not applied as given"
LEAST_WEIGHT = 1e-3

APPROXIMATE = (
    "if it is meant to be approximate, the file can declare `approximate`, and is then judged by "
    "how it trains"
)
"""Advice about an update that is near the right one, and not equal to it."""


def explain_update(
    updates: np.ndarray,
    sequential: np.ndarray,
    update: np.ndarray,
    microbatches: int,
    match: float,
) -> str:
    """Name the mistake that produces the update (parameters,); empty if none does.

    `updates`, (shards, parameters), are each shard's own; `sequential` applies one after another.
    """
    shards, near = len(updates), partial(close, match=match)
    mean = updates.mean(axis=0)
    if update.shape != mean.shape or near(update, mean):
        return ""
    if not update.any():
        return "the parameters do not change"
    factor = float(update @ mean / (mean @ mean))
    if near(update, factor * mean):
        reason = _reason_of(factor, shards, microbatches, match)
        return f"the gradients are {factor:.6g} times what they should be{reason}"
    if shards > 1 and near(update, sequential):
        return f"there are {shards} updates per step: one for every shard, not one for their mean"
    weighted = explain_weights(updates, update, "shards", match) if shards > 1 else ""
    advice = f" ({APPROXIMATE})" if close(update, mean, 1.0) else ""
    return weighted or (f"{UNKNOWN}{advice}" if match <= MATCH else "")


def explain_weights(updates: np.ndarray, update: np.ndarray, parts: str, match: float) -> str:
    """Say which parts of the batch an update sums with other weights; empty if it is no such sum.

    `updates`, (parts, parameters), are those of each part alone, and `parts` says what these are.
    """
    weights = np.linalg.lstsq(updates @ updates.T, updates @ update, rcond=None)[0]
    if len(updates) >= update.size or not close(weights @ updates, update, match):
        return ""
    least = max(LEAST_WEIGHT, 10 * match)
    used = np.flatnonzero(abs(weights) > least)
    if len(used) == 1 and parts == "shards":
        alone = f"shard {used[0]} alone"
        return f"the gradients are those of {alone}: they are not reduced over the shards"
    if len(used) < len(updates) and np.ptp(weights[used]) <= least:
        listed = ", ".join(map(str, used))
        return f"the gradients are those of {parts} {listed} of {len(updates)} alone"
    listed = ", ".join(f"{weight:.3g}" for weight in weights.round(3) + 0.0)
    return f"the gradients of the {parts} are summed with the weights {listed}"


def _reason_of(factor: float, shards: int, microbatches: int, match: float) -> str:
    """Return the likely reasons for a constant factor."""
    reasons = {
        "summed over the shards and not divided": (shards, shards),
        "reduced twice over the shards": (shards, shards**2),
        "divided twice by the number of shards": (shards, 1 / shards),
        "summed over the microbatches and not divided": (microbatches, microbatches),
        "divided twice by the number of microbatches": (microbatches, 1 / microbatches),
    }
    likely = [
        reason
        for reason, (parts, value) in reasons.items()
        if parts > 1 and abs(factor / value - 1) < match
    ]
    return f": they are {', or '.join(likely)}" if likely else ""


def explain_loss(losses: np.ndarray, loss: float, microbatches: int, match: float) -> str:
    """Name the mistake that produces this loss; empty if none does."""
    near = partial(close, match=match)
    mean = losses.mean()
    if near(loss, mean):
        return ""
    if near(loss, losses.sum()):
        return "the loss is summed over the shards, not averaged"
    if microbatches > 1 and near(loss, microbatches * mean):
        return "the loss is summed over the microbatches, not averaged"
    for index, shard_loss in enumerate(losses):
        if near(loss, shard_loss):
            return f"the loss is that of shard {index} alone"
    factor = float(loss / mean)
    differs = f"the loss differs by {abs(factor - 1):.1e} of what it should be"
    if f"{factor:.6g}" != "1":
        differs = f"the loss is {factor:.6g} times what it should be"
    return differs if match <= MATCH else ""


def close(ours: Any, theirs: Any, match: float) -> bool:
    """Whether two vectors or scalars agree to within `match` of their size."""
    distance = float(np.linalg.norm(np.atleast_1d(ours - theirs)))
    return distance <= match * float(np.linalg.norm(np.atleast_1d(theirs)))


def general_diagnosis(name: str, *, right_start: bool) -> str:
    """Describe a wrong trajectory that matches no known mistake."""
    if name in (TIMED_SGD, AS_TIMED):
        return "the step is right in float64, but not as it would be timed"
    if name == OWN:
        later = "its first step is right, a later one is not (check the decay rates of its moments)"
        return f"{OPTIMIZER}: {later}" if right_start else OPTIMIZER
    if right_start:
        return "the first step is right, but a later one is not"
    return "the loss or the update has fewer correct digits than float64 gives"


def describe(check: Mapping[str, Any]) -> str:
    """State a check's numbers, and which of them are too large."""
    parts, named = [], {"state": "model state"}
    for what in ("loss", "update", "state"):
        if f"{what}_error" not in check:
            continue
        error, tolerance = check[f"{what}_error"], check[f"{what}_tolerance"]
        digits = 1 if f"{error:.1e}" != f"{tolerance:.1e}" else 4
        verdict = "more than" if error > tolerance else "within"
        parts.append(
            f"relative error of the {named.get(what, what)} {error:.{digits}e}, "
            f"{verdict} the allowed {tolerance:.{digits}e}"
        )
    return f"{check['name']}: {'; '.join(parts)}"
