"""Who leads, and how far the others are behind, is right as often as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.analyse.ratio_intervals import ratios
from bench.analyse.sample_rounds import Rounds
from bench.analyse.standings import Standings, rank

ALPHA = 0.01


def planted(
    truth: dict[str, float], seed: int = 0, rounds: int = 32, launches: int = 3, noise: float = 0.02
) -> Rounds:
    """Rounds of processes whose arms take these times, beside noise that a round shares."""
    rng = np.random.default_rng(seed)
    count = rounds * launches
    times = np.array([*truth.values()]) * np.exp(0.2 * rng.standard_t(4, (count, 1)))
    times = times * np.exp(noise * rng.standard_normal(times.shape))
    times *= np.exp(0.002 * rng.standard_normal((launches, len(truth)))).repeat(rounds, axis=0)
    return Rounds(tuple(truth), np.arange(count) // rounds, throughput=times, latency=times)


def without(rounds: Rounds, arm: str, since: int) -> Rounds:
    """The same, with no turn of an arm from a round on."""
    rounds.throughput[since:, rounds.arms.index(arm)] = math.nan
    return rounds


def ranked(truth: dict[str, float], **changes: float) -> Standings:
    return rank(planted(truth, **changes), list(truth), ALPHA)  # type: ignore[arg-type]


def holds(found: Standings, truth: dict[str, float]) -> bool:
    """Whether everything that is said is true."""
    fastest = min(truth.values())
    inside = all(
        low <= truth[arm] / fastest * (1 + 1e-9) and truth[arm] / fastest <= high * (1 + 1e-9)
        for arm, (low, high) in found.behind.items()
    )
    leads = [truth[arm] for arm in found.leaders]
    near = max(leads) / min(leads) <= found.largest_ratio * (1 + 1e-9)
    steps = [
        min(truth[arm] for arm in below) > max(truth[arm] for arm in above)
        for above, below in zip(found.tiers, found.tiers[1:], strict=False)
    ]
    return fastest in leads and inside and near and all(steps)


@pytest.mark.parametrize(
    "truth",
    [
        {"a": 1.0, "b": 1.0},
        {"a": 1.0, "b": 1.01, "c": 1.02, "d": 1.03, "e": 1.05, "f": 1.2, "g": 1.21},
        dict.fromkeys("abcdefg", 1.0),
    ],
)
def test_all_that_is_said_is_true_at_once(truth: dict[str, float]) -> None:
    wrong = sum(not holds(ranked(truth, seed=seed), truth) for seed in range(100))
    assert wrong <= 4, "of 100, one is allowed, and four are as rare as 1 in 50"


def test_far_apart_arms_have_tiers() -> None:
    truth = {"slow": 3.0, "a": 1.0, "middle": 1.5, "like": 1.51, "b": 1.0}
    found = ranked(truth)
    assert set(found.leaders) == {"a", "b"}
    assert 1 < found.largest_ratio < 1.03
    assert [set(tier) for tier in found.tiers] == [{"middle", "like"}, {"slow"}]
    for tier, least in zip(found.tiers, (1.5, 3.0), strict=True):
        assert 0.95 * least < min(found.behind[arm][0] for arm in tier) < least
    assert [found.tier(arm) for arm in truth] == [2, 0, 1, 1, 0]
    low, high = found.behind["slow"]
    assert 2.9 < low < 3 < high < 3.1
    assert found.behind[found.leaders[0]][1] <= found.behind[found.leaders[1]][1]


@pytest.mark.parametrize("slower", [1, 2, 4])
def test_arms_behind_a_single_leader_share_the_error_evenly(slower: int) -> None:
    rounds = planted({"first": 1.0} | {f"slow{number}": 2.0 + number for number in range(slower)})
    found, claimed = rank(rounds, rounds.arms, ALPHA), ratios(rounds, {"slow0": "first"})
    assert found.leaders == ("first",)
    assert found.behind["slow0"] == pytest.approx(claimed["slow0"].interval(ALPHA / slower))


def test_one_that_is_behind_the_fastest_may_equal_another_leader() -> None:
    """`noisy` may be the fastest and may be slow, so that `second` is surely only behind `first`"""
    rounds = planted({"first": 1.0, "second": 1.04, "noisy": 1.02}, noise=0.005)
    rounds.throughput[:, 2] *= np.exp(0.3 * np.random.default_rng(1).standard_normal(96))
    found = rank(rounds, rounds.arms, ALPHA)
    assert set(found.leaders) == {"first", "noisy"}
    assert found.tiers == (("second",),)
    assert found.behind["second"][0] == 1, "behind one of two"


@pytest.mark.parametrize("arms", [(), ("a",)])
def test_without_others(arms: tuple[str, ...]) -> None:
    found = rank(planted({"a": 1.0}), arms, ALPHA)
    assert found == Standings(arms, (), dict.fromkeys(arms, (1.0, 1.0)))


def test_arms_without_a_round_in_common_have_no_place() -> None:
    rounds = planted({"a": 1.0, "b": 2.0, "apart": 0.5})
    rounds.throughput[:48, 2] = math.nan
    rounds.throughput[48:, :2] = math.nan
    found = rank(rounds, [*rounds.arms, "never"], ALPHA)
    assert found.leaders == ("a",)
    assert [*found.tiers] == [("b",)]
    assert math.isnan(found.tier("apart"))
    assert set(found.behind) == {"a", "b"}
    assert rank(rounds, ["a", "apart"], ALPHA).leaders == ()


def test_arms_that_only_shared_rounds_with_a_third_have_no_bound() -> None:
    rounds = planted({"a": 1.0, "b": 1.001, "base": 2.0})
    rounds.throughput[:48, 0] = math.nan
    rounds.throughput[48:, 1] = math.nan
    found = rank(rounds, rounds.arms, ALPHA)
    assert set(found.leaders) == {"a", "b"}
    assert found.largest_ratio == math.inf
    assert found.tiers[0] == ("base",)


def test_an_arm_that_ended_early_has_a_wider_bound() -> None:
    truth = {"a": 1.0, "b": 1.0, "ended": 1.0}
    found = rank(without(planted(truth), "ended", 12), list(truth), ALPHA)
    assert set(found.leaders) == set(truth)
    assert found.behind["ended"][1] > found.behind["a"][0]
    assert found.leaders[-1] == "ended"


@pytest.mark.parametrize(("rounds", "alpha"), [(4, ALPHA), (32, 0.0)])
def test_without_an_error_nothing_is_excluded(rounds: int, alpha: float) -> None:
    truth = {"a": 1.0, "b": 3.0}
    found = rank(planted(truth, rounds=rounds, launches=1), list(truth), alpha)
    assert set(found.leaders) == set(truth)
    assert found.leaders[0] == "a"
    assert found.largest_ratio == math.inf
    assert not found.tiers


def test_an_arm_that_is_decided_to_be_slower_than_another_does_not_lead() -> None:
    rounds = planted({"base": 1.0, "slow": 1.03}, rounds=16, launches=2, noise=0.03)
    assert set(rank(rounds, rounds.arms, 1e-5).leaders) == {"base", "slow"}
    errors = {frozenset(("slow", "base")): 0.05}
    assert rank(rounds, rounds.arms, 1e-5, errors=errors).leaders == ("base",)
