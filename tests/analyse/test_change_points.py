"""Change points are found where there are some, in as few values as the test can decide on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.analyse import change_points


def noise(seed: int, size: int) -> np.ndarray:
    return 0.01 * np.random.default_rng(seed).standard_normal(size)


@pytest.fixture
def fewer_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare fewer orders, which takes less time and is as exact a test."""
    monkeypatch.setattr(change_points, "RESAMPLES", 999)


@pytest.mark.usefixtures("fewer_orders")
@pytest.mark.parametrize("seed", range(3))
def test_steps_are_found_where_they_are(seed: int) -> None:
    levels = np.repeat([0.0, 0.1, -0.1], [12, 14, 10])
    assert change_points.find(noise(seed, 36) + levels) == [12, 26]


def test_a_level_that_came_back_has_two_changes() -> None:
    levels = np.repeat([0.0, 0.2, 0.0], [12, 6, 12])
    assert change_points.find(noise(0, 30) + levels) == [12, 18]


@pytest.mark.usefixtures("fewer_orders")
def test_series_without_a_change_rarely_have_one() -> None:
    alarms = [bool(change_points.find(noise(seed, 12), alpha=0.1)) for seed in range(50)]
    # Binomial(50, 0.1) exceeds 12 with a probability of 0.1 %; none at all has 0.5 %.
    assert 0 < sum(alarms) <= 12


def test_the_clearest_change_needs_the_fewest_values() -> None:
    fewest = change_points.fewest()
    assert 2 / math.comb(fewest, fewest // 2) <= change_points.ALPHA
    assert 2 / math.comb(fewest - 1, (fewest - 1) // 2) > change_points.ALPHA
    for size, expected in ((fewest, [fewest // 2]), (fewest - 1, [])):
        levels = np.repeat([0.0, 1.0], [fewest // 2, size - fewest // 2])
        assert change_points.find(noise(1, size) + levels) == expected
    assert change_points.find([]) == []


def test_divergences_are_those_of_the_definition() -> None:
    series = np.random.default_rng(0).standard_normal(7)
    found = change_points._divergences(series)
    for i in range(7):
        for k in range(i + 1, 7):
            one, other = series[: i + 1], series[i + 1 : k + 1]
            between, own, its = (
                np.abs(np.subtract.outer(x, y)).mean()
                for x, y in ((one, other), (one, one), (other, other))
            )
            weight = len(one) * len(other) / (len(one) + len(other))
            assert found[i, k] == pytest.approx(weight * (2 * between - own - its))
        assert not found[i, : i + 1].any()


def test_equal_series_give_equal_changes() -> None:
    series = noise(5, 14) + np.repeat([0.0, 0.015], 7)
    assert change_points.find(series) == change_points.find(list(series))
