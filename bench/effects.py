"""Does measuring disturb what it measures? Drift within launches, and effects of the order.

Imports no jax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy.special import chdtrc, ndtr

from bench.statistics import inflation, median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bench.statistics import Rounds

SURE = 0.001
"""Probability below which an effect is taken for real: there are many to look at."""

_FEWEST_ROUNDS = 8
_FEWEST_TURNS = 3


@dataclass(frozen=True)
class Effect:
    """How much something shifts times, and how likely chance alone shows as much."""

    size: float
    """Difference of log times; about a relative difference."""
    p: float

    @property
    def sure(self) -> bool:
        """Whether chance is no explanation."""
        return self.p < SURE


def drift(rounds: Rounds, arm: str, other: str) -> Effect | None:
    """Trend of the log ratio over the rounds of a launch: is the comparison in a steady state?

    Every launch is tested by itself, by Mann and Kendall's test; the normal scores are combined by
    Stouffer's method, so that launches that drift in opposite directions do not add up. The size
    is the median over launches of Theil and Sen's slope times the rounds. None where no launch has
    enough rounds.
    """
    series = [s for s in rounds.log_ratios(arm, other) if len(s) >= _FEWEST_ROUNDS and np.ptp(s)]
    if not series:
        return None
    slopes, scores = zip(*map(trend, series), strict=True)
    sizes = [slope * (len(values) - 1) for slope, values in zip(slopes, series, strict=True)]
    score = sum(scores) / math.sqrt(len(scores))
    return Effect(median(np.array(sizes)), 2 * float(ndtr(-abs(score))))


def trend(values: NDArray[np.float64]) -> tuple[float, float]:
    """Theil and Sen's slope a place, and the normal score of Mann and Kendall's test.

    Both are functions of the differences of all pairs: the median of their slopes, and the sum of
    their signs, S, whose variance is n (n - 1) (2 n + 5) / 18 without a trend, without ties and
    with independent values (Kendall, Rank Correlation Methods, 1975), with the usual correction for
    continuity. As scipy.stats.theilslopes and kendalltau, which take ten times as long for a report
    of 10,000. Neighbours that depend on each other make S vary more: as Hamed and Rao (Journal of
    Hydrology 204 (1998), 182) do, its variance is inflated by the autocorrelation of what the trend
    leaves.
    """
    earlier, later = _pairs(len(values))
    differences = values[later] - values[earlier]
    slope = median(differences / (later - earlier))
    total = float(np.sign(differences).sum())
    count = len(values)
    variance = count * (count - 1) * (2 * count + 5) / 18
    variance *= inflation(values - slope * np.arange(count))
    score = (total - math.copysign(1, total)) / math.sqrt(variance) if total else 0.0
    return slope, score


@cache
def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.triu_indices(count, 1)


def order(rounds: Rounds, by: NDArray[np.float64]) -> Effect | None:
    """Effect of the order of turns on their times.

    A turn's log time, less its arm's median in the process and less its round's median, is grouped
    by `by`, which is `rounds.position` or `rounds.predecessor`. Orders are about balanced, so that
    neither arms nor the other of the two effects are mixed into the groups. The size is the largest
    difference of two groups' medians, the test Kruskal and Wallis's. None where there are too few
    turns.
    """
    shared = (~np.isnan(rounds.throughput)).sum(axis=1) > 1
    if not shared.any():
        return None
    left, by, attempt = np.log(rounds.throughput[shared]), by[shared], rounds.attempt[shared]
    for process in np.unique(attempt):
        own = attempt == process
        present = ~np.isnan(left[own]).all(axis=0)
        left[np.ix_(own, present)] -= _median(left[np.ix_(own, present)], axis=0)
    left -= _median(left, axis=1)
    known = ~(np.isnan(left) | np.isnan(by))
    values, keys = left[known], by[known]
    groups = [values[keys == key] for key in np.unique(keys)]
    groups = [group for group in groups if len(group) >= _FEWEST_TURNS]
    if len(groups) < 2 or not np.ptp(np.concatenate(groups)):  # noqa: PLR2004
        return None
    medians = [median(group) for group in groups]
    return Effect(max(medians) - min(medians), kruskal_wallis(groups))


def kruskal_wallis(groups: Sequence[NDArray[np.float64]]) -> float:
    """Probability that groups of one distribution have mean ranks as different as these.

    H = 12 / (n (n + 1)) sum_i R_i^2 / n_i - 3 (n + 1), where R_i is the sum of the n_i ranks of
    group i, over its value if no two values were equal, is about chi-squared (Kruskal and Wallis,
    JASA 47 (1952), 583). As scipy.stats.kruskal, which takes six times as long for such groups, and
    to import as long as all of pandas. Not all values may be equal.
    """
    values = np.concatenate(groups)
    sizes = np.array([len(group) for group in groups])
    count = len(values)
    ranks = pd.Series(values).rank().to_numpy()
    sums = np.add.reduceat(ranks, np.cumsum(sizes) - sizes)
    h = 12 / (count * (count + 1)) * float((sums**2 / sizes).sum()) - 3 * (count + 1)
    _, ties = np.unique(ranks, return_counts=True)
    h /= 1 - float((ties**3 - ties).sum()) / (count**3 - count)
    return float(chdtrc(len(groups) - 1, h))


def _median(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The median of what is there; np.nanmedian is slow, and hardly ever is anything missing."""
    median = np.nanmedian if np.isnan(values).any() else np.median
    found: NDArray[np.float64] = median(values, axis=axis, keepdims=True)
    return found


@dataclass(frozen=True)
class Conditions:
    """What the host did while a block was timed. Shares are of all its cores' time."""

    steal: float
    """Taken by the hypervisor for other guests."""
    foreign: float
    """Used by other processes."""
    mhz: tuple[float, float] | None
    """Lowest and highest mean frequency; None where the system does not show it."""


def conditions(samples: pd.DataFrame) -> Conditions | None:
    """Sum up the host's slots in a frame of samples; None where the system told nothing."""
    there = float(samples["host_cores_s"].sum())
    if not there:
        return None
    mhz = samples["host_mhz"].dropna().astype(float)
    return Conditions(
        steal=float(samples["host_steal_s"].sum()) / there,
        foreign=max(float(samples["host_foreign_s"].sum()) / there, 0.0),
        mhz=None if mhz.empty else (float(mhz.min()), float(mhz.max())),
    )
