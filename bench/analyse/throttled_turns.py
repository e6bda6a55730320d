"""Turns at whose end a GPU's clock was held down, by arm. They are marked, and count like others.

Samples have the marks in the column `boards_throttled`: the limits in force, separated by `; `.
"""

from collections import Counter
from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class ThrottledArm:
    """The throttled turns of an arm in a block."""

    block: str
    arm: str
    turns: int
    """All turns whose limits are known."""
    throttled: int
    """Turns with at least one limit."""
    reasons: dict[str, int]
    """Turns by limit, such as `heat`; most frequent first. A turn may have several."""


@dataclass(frozen=True)
class Throttling:
    """Throttled turns of a run."""

    arms: tuple[ThrottledArm, ...]
    """Arms that have any, the most affected first."""
    reading_s: float
    """Median time of reading the boards after a turn, outside the timed spans."""


def find(samples: pd.DataFrame) -> Throttling | None:
    """Count throttled turns; None if no board was read."""
    known = samples[samples["boards_throttled"].notna()]
    if known.empty:
        return None
    arms = []
    for (block, arm), marks in known.groupby(["block", "arm"], sort=False)["boards_throttled"]:
        limited = [mark for mark in marks if mark]
        reasons = Counter(word for mark in limited for word in mark.split("; "))
        if limited:
            found = ThrottledArm(
                str(block), str(arm), len(marks), len(limited), dict(reasons.most_common())
            )
            arms.append(found)
    arms.sort(key=lambda one: (-one.throttled / one.turns, one.block, one.arm))
    return Throttling(tuple(arms), float(known["boards_read_ns"].median()) / 1e9)
