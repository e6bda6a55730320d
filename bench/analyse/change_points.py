"""Change points of a series by E-divisive, with a permutation test of each.

The method is that of Matteson and James (Journal of the American Statistical Association 109
(2014), 334) and of Apache Otava: take the place at which the series changes most, by the energy
distance between the values before and after it, and accept it if few random orders of the series
change as much anywhere. Then search either side. The test assumes no distribution.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

ALPHA = 0.01
"""Probability of finding a change point in a series without one."""

RESAMPLES = 9_999
"""Random orders in a test."""

_BATCH = 2_000_000
"""Distances that a test holds in memory at a time."""


def fewest(alpha: float = ALPHA) -> int:
    """Return the length of the shortest series in which a change point can be found.

    Of n values, the clearest possible change has a p-value of 2 / C(n, n/2), because any order that
    puts one half first changes as much.
    """
    return next(n for n in itertools.count(2) if 2 / math.comb(n, n // 2) <= alpha)


def find(values: Sequence[float] | NDArray[np.float64], alpha: float = ALPHA) -> list[int]:
    """Return the index of the first value after each change; `alpha` is the error of each test."""
    series = np.asarray(values, float)
    size = len(series)
    if size < fewest(alpha):
        return []
    test = stats.permutation_test(
        (series,),
        lambda orders, axis: _divergences(orders).max(axis=(axis, axis - 1)),
        permutation_type="pairings",
        alternative="greater",
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH // size**2),
        rng=0,  # equal rows give equal reports
    )
    if test.pvalue > alpha:
        return []
    start = int(np.unravel_index(_divergences(series).argmax(), (size, size))[0]) + 1
    after = (start + place for place in find(series[start:], alpha))
    return [*find(series[:start], alpha), start, *after]


def _divergences(series: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much neighbouring parts of each series, (..., n), differ: (..., n, n).

    For a row i and a column k > i, it is the energy distance of values 0 to i and values i + 1 to
    k, times a b / (a + b) for parts of a and b values; 0 for other columns.
    """
    distances = np.abs(series[..., :, np.newaxis] - series[..., np.newaxis, :])
    sums = distances.cumsum(axis=-1).cumsum(axis=-2)
    within = np.diagonal(sums, axis1=-2, axis2=-1)
    left, whole = within[..., :, np.newaxis], within[..., np.newaxis, :]
    a = np.arange(1, series.shape[-1] + 1)[:, np.newaxis]
    b = np.maximum(a.T - a, 1)
    across, right = sums - left, whole - 2 * sums + left
    differs = 2 * across / (a * b) - left / a**2 - right / b**2
    return np.where(a < a.T, differs * a * b / (a + b), 0.0)
