"""Planted drifts are found; where there are none, none are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr
from scipy.stats import kendalltau, theilslopes

from bench.analyse.disturbances import SURE, Conditions, conditions, drifts, trend
from bench.analyse.sample_rounds import Rounds

ARMS = ["base", "x", "y", "z"]


def simulate(seed: int, *, drifts: float = 0.0, launches: int = 2) -> Rounds:
    """32 rounds per launch, in which x drifts from the rest."""
    rng = np.random.default_rng(seed)
    rows = []
    for launch in range(launches):
        for number in range(32):
            shared = 0.1 * rng.standard_normal()
            for arm in ARMS:
                log = shared + 0.01 * rng.standard_normal()
                log += drifts * number / 31 * (arm == "x")
                rows.append(
                    {
                        "launch": launch, "attempt": str(launch), "arm": arm, "round": number,
                        "steps": 1, "throughput_ns": 1e6 * np.exp(log),
                        "latency_steps": 2, "latency_ns": 1e6, "wash_out_ns": 1e6,
                    }
                )  # fmt: skip
    return Rounds.of(pd.DataFrame(rows))


def drift(rounds: Rounds, arm: str, other: str) -> float | None:
    return drifts(rounds.paired({arm: other})).get(arm)


def test_a_planted_drift_is_found_with_its_size() -> None:
    assert drift(simulate(1, drifts=0.05), "x", "base") == pytest.approx(0.05, abs=0.015)
    assert drift(simulate(1, drifts=0.05), "y", "base") is None


def test_trends_are_those_of_scipy() -> None:
    rng = np.random.default_rng(4)
    for count in (8, 30, 64):
        values = rng.standard_normal(count) + 0.02 * np.arange(count)
        slope, score = trend(values)
        assert slope == pytest.approx(theilslopes(values).slope)
        exact = kendalltau(np.arange(count), values).pvalue
        assert 2 * ndtr(-abs(score)) == pytest.approx(exact, abs=0.02)


def test_drifts_are_those_of_each_arm() -> None:
    """Of launches of several lengths."""
    rng = np.random.default_rng(8)
    lengths = {"few": (4,), "x": (8,), "y": (8, 30, 5), "z": (30, 30)}
    for steepness, moving in ((0.0, []), (0.2, ["y", "z"]), (9.0, ["x", "y", "z"])):
        series = {
            arm: [rng.standard_normal(n) + steepness * np.arange(n) for n in each]
            for arm, each in lengths.items()
        }
        series["still"] = [np.zeros(16)]
        found = drifts(series)
        assert list(found) == moving
        for arm, size in found.items():
            launches = [values for values in series[arm] if len(values) >= 8]
            slopes, scores = zip(*map(trend, launches), strict=True)
            sizes = [slope * (len(v) - 1) for slope, v in zip(slopes, launches, strict=True)]
            assert size == pytest.approx(np.median(sizes))
            assert 2 * ndtr(-abs(sum(scores)) / np.sqrt(len(scores))) < SURE


def test_rounds_that_depend_on_each_other_are_no_drift() -> None:
    rng = np.random.default_rng(9)
    sure = 0
    for _ in range(1000):
        series = rng.standard_normal(64)
        for i in range(1, 64):
            series[i] += 0.4 * series[i - 1]
        sure += 2 * ndtr(-abs(trend(series)[1])) < SURE
    assert sure <= 10, "nominally 1; unless dependence is made up for, about 20"


def test_chance_is_not_taken_for_an_effect() -> None:
    found = [drift(simulate(seed, launches=1), "x", "base") for seed in range(60)]
    assert sum(size is not None for size in found) <= 1


def test_too_little_shows_nothing() -> None:
    one = simulate(3, launches=1)
    few = Rounds(one.arms, one.attempt[:2], one.throughput[:2], one.latency[:2])
    assert drift(few, "x", "base") is None
    assert drift(one, "x", "absent") is None
    assert drift(one, "x", "x") is None, "no ratio moves"


def test_the_hosts_slots_are_summed_up() -> None:
    slots = pd.DataFrame(
        {
            "host_cores_s": [2.0, 2.0], "host_steal_s": [0.0, 0.4],
            "host_foreign_s": [-0.01, 0.21], "host_mhz": [2100.0, 3000.0],
        }
    )  # fmt: skip
    found = conditions(slots)
    assert (found.steal, found.foreign) == pytest.approx((0.1, 0.05))
    assert found.mhz == (2100, 3000)
    assert conditions(slots.assign(host_mhz=None)).mhz is None
    assert conditions(slots[:0]) == Conditions(steal=0.0, foreign=0.0, mhz=None)
