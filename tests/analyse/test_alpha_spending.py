"""Looks spend no more error together than there is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from bench.analyse.alpha_spending import AlphaSpending
from bench.analyse.verdicts import ALPHA

ROUNDS = (16, 32, 64, 80, 96, 128, 144, 160, 192)
PLAN = 192


def spend(comparisons: int = 1) -> AlphaSpending:
    spending = AlphaSpending()
    for rounds in ROUNDS:
        spending.look(rounds, rounds / PLAN, comparisons)
    return spending


@pytest.mark.parametrize("comparisons", [1, 10])
def test_walks_without_a_difference_are_stopped_as_often_as_planned(comparisons: int) -> None:
    rng = np.random.default_rng(1)
    trials, sums, before = 200_000, 0.0, 0
    stopped = np.zeros(trials, bool)
    for look in spend(comparisons).looks:
        sums = sums + np.sqrt(look["rounds"] - before) * rng.standard_normal(trials)
        before = look["rounds"]
        limit = -special.ndtri(look["alpha"] / comparisons / 2) * np.sqrt(look["rounds"])
        stopped |= np.abs(sums) > limit
    planned = 0.8 * ALPHA / comparisons
    assert stopped.mean() == pytest.approx(planned, abs=4 * np.sqrt(planned / trials))


@pytest.mark.parametrize("comparisons", [1, 10])
def test_the_error_of_looks_is_that_of_scipys_normal_distribution(comparisons: int) -> None:
    spending, rounds = AlphaSpending(), np.array([16, 64, 192])
    alphas = np.array([spending.look(int(n), n / PLAN, comparisons) for n in rounds])
    limits = -special.ndtri(alphas / comparisons / 2) * np.sqrt(rounds)
    walk = stats.multivariate_normal(
        cov=np.minimum.outer(rounds, rounds), seed=0, maxpts=10**6, abseps=1e-9, releps=1e-9
    )
    stopped = 1 - walk.cdf(limits, lower_limit=-limits)
    assert stopped == pytest.approx(0.8 * ALPHA / comparisons, rel=1e-4)


def test_the_joint_distribution_leaves_later_looks_more() -> None:
    looks = spend().looks
    assert looks[0]["alpha"] == pytest.approx(0.8 * ALPHA * 16 / PLAN)
    assert looks[-1]["spent"] == pytest.approx(0.8 * ALPHA)
    by_bonferroni = looks[-1]["spent"] - looks[-2]["spent"]
    assert looks[-1]["alpha"] > 1.5 * by_bonferroni


def test_more_measuring_than_planned_makes_verdicts_easier() -> None:
    spending = spend()
    alphas = [spending.look(PLAN * times, times) for times in (2, 4, 16, 64)]
    assert all(alpha > 0 for alpha in alphas)
    assert spending.looks[-4]["spent"] == pytest.approx(0.9 * ALPHA)
    assert spending.spent < ALPHA
    # A resumed run goes on where it stopped.
    assert AlphaSpending(spending.looks[:-1]).look(PLAN * 64, 64) == alphas[-1]


def test_looking_again_at_the_same_rounds_is_one_look() -> None:
    spending = AlphaSpending()
    first = spending.look(16, 16 / PLAN)
    assert spending.look(16, 16 / PLAN) == first
    assert spending.look(16, 1.0) == pytest.approx(0.8 * ALPHA)
    assert len(spending.looks) == 1
    assert spending.spent == pytest.approx(0.8 * ALPHA)


def test_a_look_at_fewer_rounds_spends_nothing() -> None:
    spending = AlphaSpending()
    spending.look(32, 0.5)
    assert spending.look(16, 0.6) == 0
    assert spending.look(64, 0.5) == 0, "without progress"
    assert spending.look(0, 0.6) == 0
    assert len(spending.looks) == 1
