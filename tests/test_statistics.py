"""The estimators recover what was planted, and claim no more than they can."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from bench import statistics
from bench.rows import TWIN
from bench.statistics import Ratio


def simulate(
    seed: int, ratios: dict[str, float], rounds: int = 15, noise: float = 0.01, attempt: str = "a"
) -> pd.DataFrame:
    """Samples of one attempt whose noise is dependent.

    A drift and heavy-tailed bursts are shared by a round, and each arm has skewed noise of its own.
    """
    rng = np.random.default_rng(seed)
    rows = []
    drift = np.cumsum(0.05 * rng.standard_normal(rounds))
    for number in range(rounds):
        shared = drift[number] + 0.1 * rng.standard_t(4)
        for arm, ratio in ratios.items():
            own = noise * (rng.exponential() - math.log(2))
            seconds = 0.01 * ratio * math.exp(shared + own)
            rows.append(("b", attempt, 0, arm, number, 10, int(1e10 * seconds * 1.1),
                         int(1e10 * seconds)))  # fmt: skip
    columns = ["block", "attempt", "launch", "arm", "round", "steps", "latency_ns", "throughput_ns"]
    return pd.DataFrame(rows, columns=columns)


def test_the_paired_ratio_sees_through_shared_noise() -> None:
    found = statistics.ratio(simulate(1, {"x": 1.25, "base": 1.0}), "x", "base")
    assert found is not None
    assert found.paired
    assert found.value == pytest.approx(1.25, rel=0.01)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1.25 < found.high
    # What all rounds of each arm spread by is far wider.
    assert found.high / found.low < 1.03
    raw = statistics.step_seconds(simulate(1, {"x": 1.25}), "x", "throughput_ns")
    assert raw.quantile(0.75) / raw.quantile(0.25) > 1.1


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(20)
    trials, rounds = 3000, 15
    shared = 0.1 * rng.standard_t(2, (trials, rounds)).cumsum(axis=1)
    arm = math.log(1.25) + shared + 0.01 * rng.exponential(size=(trials, rounds))
    other = shared + 0.01 * rng.exponential(size=(trials, rounds))
    covered = 0
    for log_ratios in arm - other:
        found = statistics.estimate(pd.Series(log_ratios))
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 1.25 <= found.high
    # 15 rounds give the interval from the 4th to the 12th value; 4 standard deviations around it.
    truth = 1 - 2 * binom.cdf(3, rounds, 0.5)
    assert covered / trials == pytest.approx(truth, abs=4 * math.sqrt(truth * (1 - truth) / trials))


@pytest.mark.parametrize(("count", "lowest"), [(6, 0), (8, 0), (9, 1), (12, 2), (20, 5), (100, 39)])
def test_the_order_statistics_are_the_tabled_ones(count: int, lowest: int) -> None:
    # Conover, Practical Nonparametric Statistics: sign test intervals for the median.
    values = np.random.default_rng(0).permutation(np.arange(count, dtype=float))
    assert statistics.median_interval(values) == (lowest, count - 1 - lowest)


@pytest.mark.parametrize("count", range(6))
def test_too_few_rounds_have_no_interval(count: int) -> None:
    assert statistics.median_interval(np.arange(count, dtype=float)) is None


def test_few_rounds_still_have_a_value() -> None:
    found = statistics.ratio(simulate(3, {"x": 2.0, "base": 1.0}, rounds=5), "x", "base")
    assert found is not None
    assert (found.low, found.high, found.rounds, found.paired) == (None, None, 5, True)
    assert not found.excludes_one()


def test_arms_of_different_attempts_are_unpaired_and_without_interval() -> None:
    samples = pd.concat(
        [
            simulate(4, {"base": 1.0}, rounds=201),
            simulate(5, {"x": 3.0}, rounds=201, attempt="alone"),
        ]
    )
    found = statistics.ratio(samples, "x", "base")
    assert found is not None
    assert not found.paired
    assert (found.low, found.high) == (None, None)


def test_rounds_pair_within_an_attempt_only() -> None:
    """Two attempts with equal round numbers but a tenfold slower host."""
    slow = simulate(7, {"x": 12.5, "base": 10.0}, attempt="slow")
    samples = pd.concat([simulate(6, {"x": 1.25, "base": 1.0}), slow])
    found = statistics.ratio(samples, "x", "base")
    assert found is not None
    assert found.rounds == 30
    assert found.value == pytest.approx(1.25, rel=0.01)


def test_the_twin_measures_the_noise_floor() -> None:
    floor = statistics.noise_floor(simulate(8, {"base": 1.0, TWIN: 1.0}, rounds=30), "base")
    assert floor is not None
    assert floor.low is not None
    assert floor.high is not None
    assert floor.low < 1 < floor.high
    assert 0 < statistics.floor_width(floor) < 0.02


def test_a_difference_must_exceed_interval_and_floor() -> None:
    clear = Ratio(1.10, 1.09, 1.11, rounds=12, paired=True)
    quiet = Ratio(1.00, 0.99, 1.01, rounds=12, paired=True)
    noisy = Ratio(1.00, 0.85, 1.02, rounds=12, paired=True)
    assert statistics.resolved(clear, quiet)
    assert statistics.resolved(clear.inverse(), quiet)
    assert statistics.resolved(clear, None)
    assert not statistics.resolved(clear, noisy)
    assert not statistics.resolved(Ratio(1.10, 0.99, 1.2, rounds=12, paired=True), quiet)
    assert not statistics.resolved(Ratio(1.10, None, None, rounds=5, paired=True), quiet)


def test_the_inverse_swaps_the_ends() -> None:
    inverse = Ratio(2.0, 1.6, 2.5, rounds=9, paired=True).inverse()
    assert (inverse.value, inverse.low, inverse.high) == (0.5, 0.4, 0.625)


def test_the_spread_is_a_step_not_a_span() -> None:
    samples = pd.DataFrame(
        {
            "arm": "x", "launch": 0, "attempt": "a", "round": range(5), "steps": 4,
            "throughput_ns": [4_000, 8_000, 12_000, 16_000, 400_000],
            "latency_ns": [40_000] * 5,
        }
    )  # fmt: skip
    found = statistics.spread(samples, "x", "throughput_ns")
    assert found == statistics.Spread(3e-6, 2e-6, 4e-6, rounds=5)
    assert statistics.spread(samples, "x", "latency_ns") == statistics.Spread(
        1e-5, 1e-5, 1e-5, rounds=5
    )
    assert statistics.spread(samples, "y", "latency_ns") is None
    assert statistics.ratio(samples, "x", "y") is None
