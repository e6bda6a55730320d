"""Does measuring disturb what it measures? Drift within launches, and effects of the order.

Imports no jax.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median as median_of
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtrc, ndtr

from bench.analyse.statistics import inflation, median, stacked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from bench.analyse.statistics import Rounds

SURE = 0.001
"""Probability below which an effect is taken for real: there are many to look at."""

_FEWEST_ROUNDS = 8
_FEWEST_TURNS = 3
_MOST_PAIRS = 1_000_000
"""Of rounds, compared at once: some 10 MB."""


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
    return drifts(rounds.paired({arm: other})).get(arm)


def drifts(series: Mapping[str, Sequence[NDArray[np.float64]]]) -> dict[str, Effect]:
    """`drift` of arms by their log ratios, an array a launch; of those with enough rounds."""
    arms = [arm for arm, launches in series.items() for _ in launches]
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for places, values in stacked([values for launches in series.values() for values in launches]):
        count = values.shape[-1]
        if count < _FEWEST_ROUNDS:
            continue
        moving = np.flatnonzero(np.ptp(values, axis=-1))
        few = max(1, _MOST_PAIRS // len(_pairs(count)[0]))
        for some in (moving[start : start + few] for start in range(0, len(moving), few)):
            trends = (figures.tolist() for figures in trend(values[some]))
            for place, slope, score in zip(places[some].tolist(), *trends, strict=True):
                found[arms[place]].append((slope * (count - 1), score))
    return {arm: _combined(*zip(*found[arm], strict=True)) for arm in series if arm in found}


def _combined(sizes: Sequence[float], scores: Sequence[float]) -> Effect:
    score = sum(scores) / math.sqrt(len(scores))
    return Effect(median_of(sizes), 2 * float(ndtr(-abs(score))))


def trend(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Theil and Sen's slope a place, and the normal score of Mann and Kendall's test.

    Both are functions of the differences of all pairs: the median of their slopes, and the sum of
    their signs, S, whose variance is n (n - 1) (2 n + 5) / 18 without a trend, without ties and
    with independent values (Kendall, Rank Correlation Methods, 1975), with the usual correction for
    continuity. As scipy.stats.theilslopes and kendalltau, which take ten times as long for a report
    of 10,000. Neighbours that depend on each other make S vary more: as Hamed and Rao (Journal of
    Hydrology 204 (1998), 182) do, its variance is inflated by the autocorrelation of what the trend
    leaves.

    Args:
      values: (..., rounds), each series along the last axis by itself.
    """
    count = values.shape[-1]
    earlier, later = _pairs(count)
    differences = values[..., later] - values[..., earlier]
    slope = median(differences / (later - earlier))
    total = np.sign(differences).sum(axis=-1)
    variance = count * (count - 1) * (2 * count + 5) / 18
    variance *= inflation(values - slope[..., np.newaxis] * np.arange(count))
    return slope, (total - np.sign(total)) / np.sqrt(variance)


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
    return _of_groups(_left_over(rounds), by)


def orders(rounds: Rounds) -> dict[str, Effect]:
    """Both effects of `order`, those that there are turns enough for."""
    left = _left_over(rounds)
    found = {name: _of_groups(left, getattr(rounds, name)) for name in ("position", "predecessor")}
    return {name: effect for name, effect in found.items() if effect is not None}


def _left_over(rounds: Rounds) -> NDArray[np.float64]:
    """(rounds, arms): log times less what is the arm's in the process, and the round's.

    NaN where an arm had no turn, or had the round for itself.
    """
    left = np.log(rounds.throughput)
    left[(~np.isnan(left)).sum(axis=1) < 2] = np.nan  # noqa: PLR2004
    for process in np.unique(rounds.attempt):
        own = rounds.attempt == process
        left[own] -= _median(left[own].T)
    return left - _median(left)[:, np.newaxis]


def _of_groups(left: NDArray[np.float64], by: NDArray[np.float64]) -> Effect | None:
    known = ~(np.isnan(left) | np.isnan(by))
    values, keys = left[known], by[known]
    together = np.argsort(keys, kind="stable")
    values, keys = values[together], keys[together]
    ends = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    groups = [values[a:b] for a, b in pairwise(ends) if b - a >= _FEWEST_TURNS]
    if len(groups) < 2 or not np.ptp(np.concatenate(groups)):  # noqa: PLR2004
        return None
    medians = np.concatenate([median(alike) for _, alike in stacked(groups)])
    return Effect(float(np.ptp(medians)), kruskal_wallis(groups))


def kruskal_wallis(groups: Sequence[NDArray[np.float64]]) -> float:
    """Probability that groups of one distribution have mean ranks as different as these.

    H = 12 / (n (n + 1)) sum_i R_i^2 / n_i - 3 (n + 1), where R_i is the sum of the n_i ranks of
    group i, over its value if no two values were equal, is about chi-squared (Kruskal and Wallis,
    JASA 47 (1952), 583). As scipy.stats.kruskal, which takes six times as long for such groups, and
    to import as long as all of pandas. Not all values may be equal.
    """
    sizes = np.array([len(group) for group in groups])
    _, place, ties = np.unique(np.concatenate(groups), return_inverse=True, return_counts=True)
    count = len(place)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    sums = np.add.reduceat(ranks, np.cumsum(sizes) - sizes)
    h = 12 / (count * (count + 1)) * float((sums**2 / sizes).sum()) - 3 * (count + 1)
    h /= 1 - float((ties**3 - ties).sum()) / (count**3 - count)
    return float(chdtrc(len(groups) - 1, h))


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of what is there in each row, NaN where nothing is. np.nanmedian is slow."""
    if not values.size:
        return np.full(len(values), np.nan)
    ordered = np.sort(values)  # NaN last
    count = (~np.isnan(values)).sum(axis=1)
    rows = np.arange(len(values))
    middle = ordered[rows, np.maximum(count - 1, 0) // 2] + ordered[rows, count // 2]
    found: NDArray[np.float64] = middle / 2
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


HOST = ("host_cores_s", "host_steal_s", "host_foreign_s", "host_mhz")
"""Columns of samples that tell of it."""


def conditions(samples: pd.DataFrame | Mapping[str, NDArray[np.float64]]) -> Conditions | None:
    """Sum up the host's slots in the columns HOST; None where the system told nothing."""
    cores, steal, foreign, mhz = (np.asarray(samples[name], float) for name in HOST)
    there = float(np.nansum(cores))
    if not there:
        return None
    mhz = mhz[~np.isnan(mhz)]
    return Conditions(
        steal=float(np.nansum(steal)) / there,
        foreign=max(float(np.nansum(foreign)) / there, 0.0),
        mhz=(float(mhz.min()), float(mhz.max())) if mhz.size else None,
    )
