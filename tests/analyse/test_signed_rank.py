"""Intervals by the signed-rank test are those of the tables, and of scipy's test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bench.analyse import signed_rank
from bench.analyse.signed_rank import batches, estimated, excluded_averages, fewest, shift


# Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, 3rd ed., table A.4.
@pytest.mark.parametrize(
    ("count", "alpha", "outside"),
    [(6, 0.0312, -1), (6, 0.0313, 0), (10, 0.049, 8), (15, 0.048, 25)],
)
def test_the_order_statistics_are_the_tabled_ones(count: int, alpha: float, outside: int) -> None:
    assert excluded_averages(count, alpha) == outside


@pytest.mark.parametrize("count", [12, 40, 90])
def test_an_interval_ends_where_the_test_rejects(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count) + 0.3
    location, low, high = shift(values, 0.05)
    assert low < location < high
    method = "exact" if count <= 64 else "approx"
    inside, outside = (
        [stats.wilcoxon(values - end, method=method).pvalue for end in ends]
        for ends in ((low + 1e-9, high - 1e-9), (low - 1e-9, high + 1e-9))
    )
    # The normal approximation has no correction for continuity here, and scipy's has none either.
    assert min(inside) > 0.05
    assert max(outside) <= 0.0505


def test_the_standard_error_is_the_spread_of_locations() -> None:
    many = np.random.default_rng(6).standard_normal((4000, 32))
    locations, errors = estimated(many)
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(np.std(locations), rel=0.06)


def test_series_are_treated_each_by_itself() -> None:
    many = np.random.default_rng(1).standard_normal((3, 4, 20))
    location, low, high = shift(many, 0.01)
    assert location.shape == low.shape == high.shape == (3, 4)
    assert shift(many[1, 2], 0.01) == (location[1, 2], low[1, 2], high[1, 2])


@pytest.mark.parametrize("count", [32, 33])
def test_a_negated_series_has_the_mirrored_interval(count: int) -> None:
    values = np.random.default_rng(2).standard_t(3, count)
    location, low, high = shift(values, 0.001)
    pairs = [(a + b) / 2 for i, a in enumerate(values) for b in values[i:]]
    assert location == pytest.approx(np.median(pairs))
    assert shift(-values, 0.001) == pytest.approx((-location, -high, -low))


@pytest.mark.parametrize("alpha", [0.05, 1e-3, 1e-5])
def test_too_few_differences_exclude_nothing(alpha: float) -> None:
    values = np.arange(1.0, fewest(alpha))
    assert shift(values, alpha)[1:] == (-np.inf, np.inf)
    assert np.isfinite(shift(np.append(values, 9.0), alpha)[1:]).all()


def test_the_normal_approximation_is_close_to_the_exact_distribution() -> None:
    for alpha, share in ((0.05, 0.9998), (1e-3, 0.998), (1e-5, 0.995)):
        excluded_averages.cache_clear()
        exact = excluded_averages(256, alpha)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signed_rank, "_MOST_EXACT", 10)
            excluded_averages.cache_clear()
            about = excluded_averages(256, alpha)
        assert share * exact < about <= exact
    excluded_averages.cache_clear()


def test_batches_hold_every_series_once_and_few_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_rank, "_BATCH", 100)
    lengths = [5, 0, 7, 5, 5, 5, 5, 20]
    found = [(length, places.tolist()) for length, places in batches(lengths)]
    assert sorted(place for _, places in found for place in places) == [0, 2, 3, 4, 5, 6, 7]
    assert all(lengths[place] == length for length, places in found for place in places)
    assert all(len(places) * length**2 <= 100 for length, places in found if length < 20)
    assert found[-1] == (20, [7]), "one at least"
