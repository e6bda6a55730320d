"""Checks that measuring does not disturb the result: trends within launches, effects of order."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import chdtrc, ndtr

from bench.analyse.sample_rounds import Rounds, divided
from bench.analyse.signed_rank import nan_quantiles

SURE = 0.001
"""P-value below which an effect is taken to be real; it is strict because many are tested."""

_FEWEST_ROUNDS = 8
_FEWEST_TURNS = 3
_LARGEST_AUTOCORRELATION = 0.9
"""Upper limit of a lag-1 autocorrelation; closer to 1, no inflation factor is large enough."""


@dataclass(frozen=True)
class Effect:
    """The size of an effect on times, and its p-value under the null hypothesis."""

    size: float
    """Difference of log times, which is about a relative difference."""
    p: float

    @property
    def sure(self) -> bool:
        """Whether the effect is significant at SURE."""
        return self.p < SURE


def drifts(series: Mapping[str, Sequence[NDArray[np.float64]]]) -> dict[str, Effect]:
    """Return the trend of each arm's log ratio within launches, a check of the steady state.

    Each launch is tested separately with the Mann-Kendall test; Stouffer's method combines the
    normal scores, so launches that drift in opposite directions do not add up. The size is the
    median over launches of the Theil-Sen slope times the rounds. Arms without a launch of enough
    rounds are left out. `series` has, by arm, log ratios as one array per launch.
    """
    effects = {}
    for arm, launches in series.items():
        long = [own for own in launches if len(own) >= _FEWEST_ROUNDS and np.ptp(own)]
        if long:
            slopes, scores = zip(*map(trend, long), strict=True)
            sizes = [slope * (len(own) - 1) for slope, own in zip(slopes, long, strict=True)]
            score = sum(scores) / math.sqrt(len(scores))
            effects[arm] = Effect(statistics.median(sizes), 2 * float(ndtr(-abs(score))))
    return effects


def trend(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the Theil-Sen slope per round, and the normal score of the Mann-Kendall test.

    Both are functions of the differences of all pairs: the median of their slopes, and the sum of
    their signs, S. Its variance is n (n - 1) (2 n + 5) / 18 without a trend, without ties and with
    independent values (Kendall, Rank Correlation Methods, 1975); the usual continuity correction is
    applied. Dependent neighbours increase it: following Hamed and Rao (Journal of Hydrology 204
    (1998), 182), the variance is inflated by the autocorrelation of the detrended values.

    scipy.stats.theilslopes and kendalltau take 5 ms for 32 rounds, where this takes 0.05 ms, and a
    report may have 10,000 series.
    """
    count = len(values)
    earlier, later = _pairs(count)
    differences = values[later] - values[earlier]
    slope = float(np.median(differences / (later - earlier)))
    total = float(np.sign(differences).sum())
    variance = count * (count - 1) * (2 * count + 5) / 18
    variance *= inflation(values - slope * np.arange(count))
    return slope, float(total - np.sign(total)) / math.sqrt(variance)


def inflation(values: NDArray[np.float64]) -> float:
    """Return the factor by which dependent neighbours inflate a variance; at least 1.

    It is the larger of two estimates from the autocorrelations r_k of the signs of deviations from
    the median, because the dependence of these signs determines a median's variance. The first is 1
    + 2 sum_k (1 - k / (b + 1)) r_k, with Bartlett's weights and b = n^(1/3) lags (Newey and West,
    Econometrica 55 (1987), 703). It assumes nothing about how the dependence decays, but misses
    longer lags. The second, (1 + r_1) / (1 - r_1) of an AR(1) process, covers those. Needs two
    values.
    """
    count = len(values)
    signs = np.sign(values - np.median(values))
    power = max(float(signs @ signs), 1.0)  # no sign, no correlation
    lags = range(1, int(math.cbrt(count) + 1e-9) + 1)
    correlations = [float(signs[lag:] @ signs[:-lag]) / power for lag in lags]
    weights = [1 - lag / (len(lags) + 1) for lag in lags]
    weighted = 1 + 2 * sum(w * r for w, r in zip(weights, correlations, strict=True))
    first = min(correlations[0] * count / (count - 1), _LARGEST_AUTOCORRELATION)
    return max(weighted, (1 + first) / (1 - first), 1.0)


@cache
def _pairs(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.triu_indices(count, 1)


def order_effects(rounds: Rounds) -> dict[str, Effect]:
    """Return the effects of `position` and `predecessor` on the times of turns.

    A turn's log time, less its arm's median in the process and less its round's median, is grouped
    by position or predecessor. Orders are nearly balanced, so that neither the arms nor the other
    effect confound the groups. The size is the largest difference between two groups' medians; the
    test is Kruskal and Wallis's. An effect with too few turns is left out.
    """
    left = np.log(rounds.throughput)
    left[(~np.isnan(left)).sum(axis=1) < 2] = np.nan  # noqa: PLR2004 (an arm alone in its round)
    for process in np.unique(rounds.attempt):
        own = rounds.attempt == process
        left[own] -= nan_quantiles(left[own].T, [0.5])[:, 0]
    left -= nan_quantiles(left, [0.5])
    by = {"position": rounds.position, "predecessor": rounds.predecessor}
    return {name: found for name, own in by.items() if (found := _group_effect(left, own))}


def _group_effect(left: NDArray[np.float64], by: NDArray[np.float64]) -> Effect | None:
    known = ~(np.isnan(left) | np.isnan(by))
    together = np.argsort(by[known], kind="stable")
    alike = divided(left[known][together], by[known][together])
    groups = [turns for turns in alike if len(turns) >= _FEWEST_TURNS]
    if len(groups) < 2 or not np.ptp(np.concatenate(groups)):  # noqa: PLR2004
        return None
    medians = [float(np.median(turns)) for turns in groups]
    return Effect(max(medians) - min(medians), kruskal_wallis(groups))


def kruskal_wallis(groups: Sequence[NDArray[np.float64]]) -> float:
    """Return the p-value of the null hypothesis that all groups have one distribution.

    H = 12 / (n (n + 1)) sum_i R_i^2 / n_i - 3 (n + 1), where R_i is the sum of the n_i ranks of
    group i, divided by the correction for ties, is about chi-squared (Kruskal and Wallis, JASA 47
    (1952), 583). Not all values may be equal.

    scipy.stats.kruskal took 1.3 ms for 8 groups of 32, where this takes 0.08 ms, twice per block,
    and importing scipy.stats took nearly as long as importing pandas.
    """
    sizes = np.array([len(group) for group in groups])
    _, place, ties = np.unique(np.concatenate(groups), return_inverse=True, return_counts=True)
    count = len(place)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    sums = np.add.reduceat(ranks, np.cumsum(sizes) - sizes)
    h = 12 / (count * (count + 1)) * float((sums**2 / sizes).sum()) - 3 * (count + 1)
    h /= 1 - float((ties**3 - ties).sum()) / (count**3 - count)
    return float(chdtrc(len(groups) - 1, h))


@dataclass(frozen=True)
class Conditions:
    """State of the host while a block was timed. Shares are of all its cores' time."""

    steal: float
    """Taken by the hypervisor for other guests."""
    foreign: float
    """Used by other processes."""
    mhz: tuple[float, float] | None
    """Lowest and highest mean frequency; None where the system does not report it."""


def conditions(samples: pd.DataFrame) -> Conditions | None:
    """Aggregate the state of the host over turns; None where the system reported nothing."""
    columns = ("host_cores_s", "host_steal_s", "host_foreign_s", "host_mhz")
    cores, steal, foreign, mhz = (samples[name].to_numpy(float) for name in columns)
    available = float(np.nansum(cores))
    if not available:
        return None
    mhz = mhz[~np.isnan(mhz)]
    return Conditions(
        steal=float(np.nansum(steal)) / available,
        foreign=max(float(np.nansum(foreign)) / available, 0.0),
        mhz=(float(mhz.min()), float(mhz.max())) if mhz.size else None,
    )
