"""Checks that the host does not disturb the result: trends within launches, and others' load."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from bench.analyse.signed_rank import batches, pairs

SURE = 0.001
"""P-value below which a trend is taken to be real; it is strict because many are tested."""

_FEWEST_ROUNDS = 8
_LARGEST_AUTOCORRELATION = 0.9
"""Upper limit of a lag-1 autocorrelation; closer to 1, no inflation factor is large enough."""


def drifts(series: Mapping[str, Sequence[NDArray[np.float64]]]) -> dict[str, float]:
    """Return the sure trends of arms' log ratios within launches, a check of the steady state.

    Each launch is tested separately with the Mann-Kendall test; Stouffer's method combines the
    normal scores, so launches that drift in opposite directions do not add up. The size is the
    median over launches of the Theil-Sen slope times the rounds; arms whose trend is not
    significant at SURE are left out. `series` has, by arm, log ratios as one array per launch.
    """
    every = ((arm, own) for arm, launches in series.items() for own in launches)
    long = [(arm, own) for arm, own in every if len(own) >= _FEWEST_ROUNDS and np.ptp(own)]
    trends = defaultdict[str, list[list[float]]](list)
    for length, places in batches([len(own) for _, own in long]):
        slopes, scores = trend(np.array([long[place][1] for place in places]))
        found = zip(places, (slopes * (length - 1)).tolist(), scores.tolist(), strict=True)
        for place, *size_and_score in found:
            trends[long[place][0]].append(size_and_score)
    sure = {}
    for arm in filter(trends.__contains__, series):
        sizes, normal = zip(*trends[arm], strict=True)
        if 2 * ndtr(-abs(sum(normal)) / math.sqrt(len(normal))) < SURE:
            sure[arm] = statistics.median(sizes)
    return sure


def trend(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the Theil-Sen slope per round, and the normal score of the Mann-Kendall test.

    `values` are many series, (..., rounds). Both figures are functions of the differences of all
    pairs: the median of their slopes, and the sum of their signs, S. Its variance is n (n - 1) (2 n
    + 5) / 18 without a trend, without ties and with independent values (Kendall, Rank Correlation
    Methods, 1975); the usual continuity correction is applied. Dependent neighbours increase it:
    following Hamed and Rao (Journal of Hydrology 204 (1998), 182), the variance is inflated by the
    autocorrelation of the detrended values.
    """
    count = values.shape[-1]
    earlier, later = pairs(count, apart=1)
    differences = values[..., later] - values[..., earlier]
    slope = np.median(differences / (later - earlier), axis=-1)
    total = np.sign(differences).sum(axis=-1)
    variance = inflation(values - slope[..., np.newaxis] * np.arange(count))
    variance *= count * (count - 1) * (2 * count + 5) / 18
    return slope, (total - np.sign(total)) / np.sqrt(variance)


def inflation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factor by which dependent neighbours inflate a variance; at least 1.

    It is (1 + r) / (1 - r) of an AR(1) process, with the lag-1 autocorrelation r of the signs of
    deviations from the median, because the dependence of these signs determines a median's
    variance. `values` are many series, (..., rounds), of at least two rounds.
    """
    count = values.shape[-1]
    signs = np.sign(values - np.median(values, axis=-1, keepdims=True))
    power = np.maximum((signs**2).sum(axis=-1), 1.0)  # no sign, no correlation
    first = (signs[..., 1:] * signs[..., :-1]).sum(axis=-1) / power * count / (count - 1)
    first = np.clip(first, 0.0, _LARGEST_AUTOCORRELATION)
    factor: NDArray[np.float64] = (1 + first) / (1 - first)
    return factor


@dataclass(frozen=True)
class Conditions:
    """State of the host while a block was timed. Shares are of all its cores' time."""

    steal: float
    """Taken by the hypervisor for other guests."""
    foreign: float
    """Used by other processes."""
    mhz: tuple[float, float] | None
    """Lowest and highest mean frequency; None where the system does not report it."""


def conditions(samples: pd.DataFrame) -> Conditions:
    """Aggregate the state of the host over turns."""
    columns = ("host_cores_s", "host_steal_s", "host_foreign_s", "host_mhz")
    cores, steal, foreign, mhz = (samples[name].to_numpy(float) for name in columns)
    available = float(np.nansum(cores)) or 1.0  # without turns, all shares are 0
    mhz = mhz[~np.isnan(mhz)]
    return Conditions(
        steal=float(np.nansum(steal)) / available,
        foreign=max(float(np.nansum(foreign)) / available, 0.0),
        mhz=(float(mhz.min()), float(mhz.max())) if mhz.size else None,
    )
