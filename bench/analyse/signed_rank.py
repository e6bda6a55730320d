"""The Hodges-Lehmann estimate of a shift, and its interval by Wilcoxon's signed-rank test.

The location of n differences is the median of their n (n + 1) / 2 Walsh averages, the means of all
pairs and of each value with itself. The interval of error alpha contains all shifts that the
signed-rank test does not reject at alpha: it extends from one order statistic of the Walsh averages
to the opposite one (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3.1-3.3).
docs/design/verdicts.md says what it assumes. Many series are computed at once, as rows of arrays.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

_ALPHA = 0.05
"""Error of the interval from whose width a standard error is derived."""

_BATCH = 4_000_000
"""Twice the number of pairs of values that are held in memory at a time."""

_MOST_EXACT = 256
"""The most differences for which the null distribution is computed exactly. Above that, the normal
approximation is used; its interval is some 1 % wider at 1e-5."""


def batches(lengths: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield a length above 0 and indices of series of that length whose pairs fit into memory."""
    every = np.asarray(lengths, np.int64)
    for length in np.unique(every[every > 0]).tolist():
        places = np.flatnonzero(every == length)
        parts = -(-len(places) * length**2 // _BATCH)
        for some in np.array_split(places, min(parts, len(places))):
            yield length, some


@cache
def pairs(count: int, apart: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of all pairs of values at least this far apart: at 0, also with itself."""
    return np.triu_indices(count, apart)


def shift(
    differences: NDArray[np.float64], alpha: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the location of each series of differences, (..., n), and the ends of its interval.

    The interval has the error alpha. Its ends are infinite where n is too small: see `fewest`.
    """
    one, other = pairs(differences.shape[-1])
    averages = (differences[..., one] + differences[..., other]) / 2
    count, depth = averages.shape[-1], excluded_averages(differences.shape[-1], alpha)
    ordered = np.sort(averages)
    location = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    if depth < 0:
        endless = np.full_like(location, np.inf)
        return location, -endless, endless
    return location, ordered[..., depth], ordered[..., count - 1 - depth]


def estimated(differences: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the location of each series, and its standard error from the width of its interval."""
    location, low, high = shift(differences, _ALPHA)
    return location, (high - low) / 2 / -float(special.ndtri(_ALPHA / 2))


def fewest(alpha: float) -> int:
    """Return how many differences an interval of error alpha needs."""
    return 1 + math.ceil(-math.log2(alpha))


@cache
def excluded_averages(count: int, alpha: float) -> int:
    """Return how many Walsh averages lie outside the interval at each end; -1 if there is none.

    With T the sum of the ranks of the positive differences, this is the largest k for which P(T <=
    k) <= alpha / 2.
    """
    if count > _MOST_EXACT:
        total = count * (count + 1) / 2
        sd = np.sqrt(total * (2 * count + 1) / 12)
        return int(max(np.floor(total / 2 + sd * special.ndtri(alpha / 2)), -1))
    below = np.cumsum(_null_distribution(count))
    return int(np.searchsorted(below, alpha / 2, "right")) - 1


@cache
def _null_distribution(count: int) -> NDArray[np.float64]:
    """Return P(T = t) for t from 0 to n (n + 1) / 2, for independent, equally likely signs."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        without = np.zeros(rank)
        chances = (np.append(chances, without) + np.append(without, chances)) / 2
    return chances
