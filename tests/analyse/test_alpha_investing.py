"""Levels of a series of tests without an end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from bench.analyse.alpha_spending import WEALTH, level
from bench.analyse.verdicts import ALPHA


def test_a_series_that_finds_nothing_spends_its_wealth_at_most() -> None:
    found: list[bool] = []
    levels = []
    for _ in range(2000):
        levels.append(level(found))
        found.append(False)
    assert all(a >= b > 0 for a, b in pairwise(levels))
    assert 0.99 * WEALTH < sum(levels) < WEALTH


def test_a_finding_earns_and_a_batch_has_the_level_of_its_last_test() -> None:
    assert level([False, True]) > level([False, False])
    # All but the first earn ALPHA, and the weight of the next test is that of the first of all.
    earned = level([True, True]) - level([True, False])
    assert earned == pytest.approx(ALPHA * level([]) / WEALTH)
    assert level([True], batch=3) == level([True, False, False])


def test_few_findings_are_wrong_where_levels_follow_the_rule() -> None:
    """E[wrong] / E[findings], with a third of all tests about real effects."""
    draws = np.random.default_rng(0)
    wrong = total = 0
    for _ in range(40):
        found: list[bool] = []
        for _ in range(150):
            real = draws.random() < 1 / 3
            p = draws.random() * (1e-6 if real else 1)
            found.append(bool(p <= level(found)))
            wrong, total = wrong + (found[-1] and not real), total + found[-1]
    assert total > 1000
    assert wrong / total < ALPHA
