"""Loss curves: their differences from the reference's, and those due to rounding alone.

The reference is the whole batch on one device: see bench/worker/phases/training.py. Every step
amplifies rounding errors, so late differences say little. Those of the first EARLY steps are
reported separately, and the reference with its sums in another order serves as a yardstick.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.records.arms import IN_PARTS, WHOLE_BATCH
from bench.records.grouping import grouped
from bench.records.rows import LossRow

EARLY = 40
"""Steps in which correct curves agree up to rounding: two orders of summation in float32 were seen
to differ by 1e-7 for about that many steps of Adam, and to diverge afterwards."""


@dataclass(frozen=True)
class Curve:
    """One arm's losses."""

    arm: str
    """Implementation, or a reference."""
    losses: NDArray[np.float64]
    """(steps,)."""
    differences: NDArray[np.float64]
    """(shared steps,): relative to the reference's loss at the same step."""
    tolerance: float
    reason: str
    """Why it is shorter than requested; empty if it is not."""

    @property
    def largest(self) -> float | None:
        """The largest difference; None where there is nothing to compare."""
        return float(self.differences.max()) if self.differences.size else None

    @property
    def early(self) -> float | None:
        """The largest difference within the first EARLY steps."""
        return float(self.differences[:EARLY].max()) if self.differences.size else None

    @property
    def beyond(self) -> int | None:
        """The first step, from 1, that differs by more than the tolerance; None if none does."""
        beyond = np.flatnonzero(self.differences > self.tolerance)
        return int(beyond[0]) + 1 if beyond.size else None


@dataclass(frozen=True)
class Training:
    """A block's curves."""

    block: Comparison
    reference: Curve
    yardstick: Curve | None
    """The reference with its sums in another order; None if there is no other order."""
    curves: list[Curve]
    """Curves of the implementations whose times may be shown, by name."""

    @property
    def every(self) -> list[Curve]:
        """All curves, the reference first."""
        return [self.reference, *filter(None, [self.yardstick]), *self.curves]

    @property
    def steps(self) -> int:
        """Number of steps of the longest curve."""
        return max(len(one.losses) for one in self.every)

    @property
    def parted(self) -> list[Curve]:
        """Curves that leave the tolerance early, while the yardstick does not; empty without it.

        Approximate steps need not follow the reference.
        """
        early = self.yardstick.early if self.yardstick else None
        if early is None or early > self.reference.tolerance:
            return []
        exact = (one for one in self.curves if one.arm not in self.block.approximate)
        return [one for one in exact if (one.early or 0.0) > one.tolerance]


def find(found: Tables) -> list[Training]:
    """Return the curves of every block that has any, in the order of the report."""
    rows = grouped((row["block"], row) for row in found.losses)
    return [_training(block, rows[block.name]) for block in found.comparisons if block.name in rows]


def _training(block: Comparison, every: Sequence[LossRow]) -> Training:
    rows = {row["arm"]: row for row in every}
    reference = np.array(rows[WHOLE_BATCH]["losses"] if WHOLE_BATCH in rows else [], float)

    def curve(arm: str) -> Curve:
        row = rows.get(arm)
        losses = np.array(row["losses"] if row else [], float)
        reason = row["reason"] if row else block.ended
        steps = min(len(losses), len(reference))
        right = np.maximum(np.abs(reference[:steps]), 1e-30)
        differences = np.abs(losses[:steps] - reference[:steps]) / right
        return Curve(arm, losses, differences, every[0]["tolerance"], reason)

    yardstick = curve(IN_PARTS) if IN_PARTS in rows else None
    return Training(block, curve(WHOLE_BATCH), yardstick, list(map(curve, sorted(block.arms))))


def curves_frame(trainings: Iterable[Training]) -> pd.DataFrame:
    """Return one row per step of a curve: its loss, and its difference from the reference's."""
    frames = []
    for training in trainings:
        for one in training.every:
            steps = np.arange(len(one.losses))
            apart = pd.Series(one.differences).reindex(steps).to_numpy(float)
            columns = {"step": steps + 1, "loss": one.losses, "difference": apart}
            frames.append(pd.DataFrame({"block": training.block.name, "arm": one.arm, **columns}))
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)
