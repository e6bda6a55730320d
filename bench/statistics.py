"""From samples to numbers: step times, ratios between arms, and how sure they are.

A ratio is time(arm) / time(other): 1.25 means that `arm` takes 25 % longer. Arms take turns within
a round, so what slows the host slows both; the ratio is taken round by round and its median is
the estimate. Imports no jax.

Everything here takes *samples*: a frame with the columns of bench.rows.SampleRow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from scipy.stats import binom

from bench.rows import TWIN

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95

Figure = Literal["throughput_ns", "latency_ns"]


@dataclass(frozen=True)
class Spread:
    """Seconds a step over an arm's rounds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """time(arm) / time(other), and its 95 % interval where the rounds allow one."""

    value: float
    low: float | None
    high: float | None
    rounds: int
    paired: bool
    """False where the arms never shared a round: drift of the host between them is in the value."""

    def excludes_one(self) -> bool:
        """Whether the interval lies wholly on one side of 1."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)

    def inverse(self) -> Ratio:
        """time(other) / time(arm)."""
        return Ratio(
            value=1 / self.value,
            low=None if self.high is None else 1 / self.high,
            high=None if self.low is None else 1 / self.low,
            rounds=self.rounds,
            paired=self.paired,
        )


def step_seconds(samples: pd.DataFrame, arm: str, figure: Figure) -> pd.Series[float]:
    """Seconds a step of each turn of `arm`, indexed by (launch, attempt, round)."""
    turns = samples[samples["arm"] == arm].set_index(["launch", "attempt", "round"])
    seconds: pd.Series[float] = turns[figure] / turns["steps"] / 1e9
    return seconds


def spread(samples: pd.DataFrame, arm: str, figure: Figure) -> Spread | None:
    """Median and quartiles of `arm`'s seconds a step; None if it has no samples."""
    seconds = step_seconds(samples, arm, figure).to_numpy(dtype=float)
    if not seconds.size:
        return None
    lower, median, upper = (float(value) for value in np.quantile(seconds, [0.25, 0.5, 0.75]))
    return Spread(median, lower, upper, rounds=seconds.size)


def ratio(samples: pd.DataFrame, arm: str, other: str) -> Ratio | None:
    """time(arm) / time(other) from rounds they shared, else from all rounds of each.

    Only the former has an interval. None where either has no samples.
    """
    above = step_seconds(samples, arm, "throughput_ns")
    below = step_seconds(samples, other, "throughput_ns")
    if above.empty or below.empty:
        return None
    both = pd.concat({"above": above, "below": below}, axis=1, join="inner")
    if both.empty:
        value = float(above.median() / below.median())
        return Ratio(value, None, None, rounds=min(len(above), len(below)), paired=False)
    return estimate(pd.Series(np.log(both["above"] / both["below"])))


def estimate(log_ratios: pd.Series[float]) -> Ratio:
    """The paired estimator: the median log ratio, and the sign test's interval around it.

    `log_ratios` has one value a round, indexed by (launch, attempt, round). Rounds are taken as
    exchangeable; what differs from launch to launch is not in the interval.
    """
    values = np.asarray(log_ratios, dtype=np.float64)
    interval = median_interval(values)
    low, high = (math.exp(end) for end in interval) if interval else (None, None)
    return Ratio(math.exp(float(np.median(values))), low, high, rounds=values.size, paired=True)


def median_interval(
    values: NDArray[np.float64], confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Interval for the median between two order statistics, whatever the distribution.

    With n values sorted as x[1] .. x[n], the count of values below the median is Binomial(n, 1/2),
    so [x[k], x[n+1-k]] misses it with probability 2 P(Binomial <= k-1). The largest k that keeps
    this at or under 1 - confidence is taken (David and Nagaraja, Order Statistics, 3rd ed., 7.1).
    None where even the extremes are not enough: under 6 values at 95 %.
    """
    count = len(values)
    tail = (1 - confidence) / 2
    depth = int(np.searchsorted(binom.cdf(np.arange(count // 2 + 1), count, 0.5), tail, "right"))
    if depth == 0:
        return None
    ordered = np.sort(values)
    return float(ordered[depth - 1]), float(ordered[count - depth])


def noise_floor(samples: pd.DataFrame, baseline: str) -> Ratio | None:
    """Ratio of two copies of the same program; what it differs from 1 by is the method's error."""
    return ratio(samples, TWIN, baseline)


def resolved(difference: Ratio, floor: Ratio | None) -> bool:
    """Whether a difference is more than noise.

    Its interval must exclude 1, and it must be larger than what the interval of the two copies of
    the baseline admits for no difference at all.
    """
    if not difference.excludes_one():
        return False
    return floor is None or abs(math.log(difference.value)) > floor_width(floor)


def floor_width(floor: Ratio) -> float:
    """Largest |log ratio| that the A/A comparison admits; about a relative difference."""
    return max(abs(math.log(end)) for end in (floor.value, floor.low, floor.high) if end)
