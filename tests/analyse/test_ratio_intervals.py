"""The estimators recover what was planted, and claim no more than they can."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.analyse import disturbances, ratio_intervals
from bench.analyse.process_spread import PROCESS, pooled
from bench.analyse.ratio_intervals import UNPAIRED_SD, Ratio, estimate, quotient
from bench.analyse.sample_rounds import Rounds, Spread, spreads
from bench.records.arms import TWIN


def simulate(
    seed: int, ratios: dict[str, float], rounds: int = 16, noise: float = 0.01, attempt: str = "a"
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
            rows.append(
                {
                    "block": "b", "attempt": attempt, "launch": 0, "arm": arm, "round": number,
                    "steps": 10, "latency_steps": 10,
                    "latency_ns": int(1e10 * seconds * 1.1), "throughput_ns": int(1e10 * seconds),
                    "wash_out_ns": int(1e9 * seconds),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def ratio_of(samples: pd.DataFrame, arm: str, other: str) -> Ratio:
    return ratio_intervals.ratios(Rounds.of(samples), {arm: other})[arm]


def ends(ratio: Ratio, alpha: float = 0.05) -> tuple[float, float]:
    interval = ratio.interval(alpha)
    assert interval is not None
    return interval


def test_rounds_are_arranged_by_process_and_time() -> None:
    both = pd.concat(
        [simulate(1, {"x": 2.0, "base": 1.0}, 3), simulate(2, {"base": 1.0}, 2, attempt="b")]
    )
    rounds = Rounds.of(both)
    assert rounds.arms == ("x", "base")
    assert rounds.attempt.tolist() == [0, 0, 0, 1, 1]
    assert rounds.throughput.shape == (5, 2)
    assert np.isnan(rounds.seconds("x")).tolist() == [False] * 3 + [True] * 2
    assert np.isnan(rounds.seconds("absent")).all()
    np.testing.assert_allclose(rounds.latency[0], 1.1 * rounds.throughput[0], rtol=1e-6)
    assert [len(series) for series in rounds.paired({"x": "base"}).get("x", [])] == [3]
    assert [len(series) for series in rounds.paired({"base": "base"}).get("base", [])] == [3, 2]
    assert not Rounds.of(both.iloc[:0]).paired({"x": "base"}).get("x", [])
    assert [len(series) for series in rounds.log_seconds("base")] == [3, 2]
    np.testing.assert_allclose(np.exp(rounds.log_seconds("x")[0]), rounds.throughput[:3, 0])
    assert not rounds.log_seconds("absent")


def test_the_paired_ratio_sees_through_shared_noise() -> None:
    found = ratio_of(simulate(1, {"x": 1.25, "base": 1.0}), "x", "base")
    assert found.paired
    assert found.value == pytest.approx(1.25, rel=0.01)
    low, high = ends(found)
    assert low < 1.25 < high
    # What all rounds of each arm spread by is far wider.
    assert high / low < 1.04
    raw = spreads(Rounds.of(simulate(1, {"x": 1.25})), "throughput")["x"]
    assert raw.upper_quartile / raw.lower_quartile > 1.1


class World:
    """Log ratios of a known truth, as worker processes would show them.

    Two arms take turns in random order on a host whose speed wanders: `dependence` is the
    correlation of neighbouring turns.
    """

    def __init__(self, process_sd: float, noise: float, dependence: float, tails: float) -> None:
        self.process_sd = process_sd
        self.noise = noise
        self.dependence = dependence
        self.tails = tails

    def launches(self, rng: np.random.Generator, trials: int, launches: int, rounds: int):
        """(trials, launches, rounds): 0 is the truth."""
        shape = (trials, launches, 2 * rounds)
        host = np.empty(shape)
        fresh = rng.standard_t(self.tails, shape)
        host[..., 0] = fresh[..., 0]
        kept = math.sqrt(1 - self.dependence**2)
        for i in range(1, 2 * rounds):
            host[..., i] = self.dependence * host[..., i - 1] + kept * fresh[..., i]
        signs = rng.choice([-1, 1], (trials, launches, rounds))
        processes = self.process_sd * rng.standard_normal((trials, launches, 1))
        return processes + self.noise * signs * (host[..., 1::2] - host[..., ::2]) / math.sqrt(2)


SD = PROCESS.sd
WORLDS = {
    "quiet": World(SD, SD, 0.0, 30),
    "noisy": World(SD, 5 * SD, 0.0, 30),
    "heavy tails": World(SD, 3 * SD, 0.0, 3),
    "dependent turns": World(SD, 20 * SD, 0.8, 30),
    "dependent, heavy tails": World(SD, 20 * SD, 0.8, 3),
    "processes alike": World(0.0, 30 * SD, 0.0, 30),
}


@pytest.mark.parametrize("launches", [1, 2, 4])
@pytest.mark.parametrize("world", WORLDS)
def test_the_interval_covers_the_truth_as_often_as_it_says(world: str, launches: int) -> None:
    rng = np.random.default_rng(len(world) + launches)
    trials = 1000
    covered = 0
    for series in WORLDS[world].launches(rng, trials, launches, rounds=32):
        low, high = ends(estimate(list(series)))
        covered += low <= 1 <= high
    assert 0.93 <= covered / trials <= 0.975


def test_the_step_before_spans_of_one_step_does_not_count() -> None:
    """For some arms, the switch itself takes time, so the wash-out step measures something else."""
    samples = pd.DataFrame(
        {
            "arm": arm, "launch": 0, "attempt": "a", "round": number, "steps": 1,
            "latency_steps": 0, "latency_ns": 0,
            "throughput_ns": first, "wash_out_ns": 150,
        }
        for number in range(4)
        for arm, first in [("x", (100, 121)[number % 2]), ("y", 100)]
    )  # fmt: skip
    [series] = Rounds.of(samples).paired({"x": "y"})["x"]
    assert np.exp(series) == pytest.approx([1.0, 1.21] * 2)


def test_a_span_of_one_step_is_a_latency_too() -> None:
    samples = pd.DataFrame(
        {
            "arm": "x", "launch": 0, "attempt": "a", "round": range(2), "steps": 1,
            "latency_steps": 0, "latency_ns": 0,
            "throughput_ns": [100, 121], "wash_out_ns": 150,
        }
    )  # fmt: skip
    rounds = Rounds.of(samples)
    assert spreads(rounds, "latency") == spreads(rounds, "throughput")


@pytest.mark.parametrize(("times", "rounds"), [(0.5, 256), (1, 64), (4, 64)])
def test_all_arms_of_a_run_show_how_much_its_processes_differ(times: float, rounds: int) -> None:
    rng = np.random.default_rng(7)
    world = World(times * SD, SD, 0.0, 30)
    blocks = [[list(arm) for arm in world.launches(rng, 6, 4, rounds)] for _ in range(8)]
    found = pooled(blocks)
    assert found.sd == pytest.approx(times * SD, rel=0.35)
    assert found.freedom > 2 * PROCESS.freedom


def test_noise_teaches_nothing_about_processes() -> None:
    rng = np.random.default_rng(8)
    world = World(SD, 30 * SD, 0.0, 3)
    blocks = [[list(arm) for arm in world.launches(rng, 6, 4, 32)] for _ in range(8)]
    found = pooled(blocks)
    assert found.sd == pytest.approx(SD, rel=0.5)
    assert found.freedom < 2 * PROCESS.freedom
    assert pooled([[[np.zeros(16)], [np.zeros(3), np.zeros(3)]]]) == PROCESS


def test_processes_that_differ_more_than_thought_widen_intervals() -> None:
    rng = np.random.default_rng(9)
    blocks = World(5 * SD, SD, 0.0, 30).launches(rng, 60, 4, 32)
    process = pooled([[list(arm)] for arm in blocks[:20]])
    covered = 0
    for series in blocks[20:]:
        low, high = ends(estimate(list(series), process))
        covered += low <= 1 <= high
    assert covered >= 35


def drifted(rng: np.random.Generator, drift: float, world: World, trials: int, launches: int):
    """Log seconds per step of runs of one program, each made on a host of its own pace."""
    pace = drift * rng.standard_normal((trials, 1, 1))
    return math.log(0.01) + pace + world.launches(rng, trials, launches, rounds=16)


AGREEING = World(0.004, 0.01, 0.2, 4)
"""Processes of one hour on a quiet host."""


@pytest.mark.parametrize(("launches", "others"), [(1, 1), (3, 1), (6, 6), (24, 24)])
def test_unpaired_intervals_cover_a_drift_between_runs(launches: int, others: int) -> None:
    """Also where the launches of each run agree: they cannot know of the other run's hour."""
    rng = np.random.default_rng(launches)
    trials = 300
    above, below = (drifted(rng, UNPAIRED_SD, AGREEING, trials, n) for n in (launches, others))
    covered = wrong = 0
    for one, other in zip(above, below, strict=True):
        found = ratio_intervals.between_runs(list(one), list(other))
        assert found is not None
        assert not found.paired
        low, high = ends(found)
        covered += low <= 1 <= high
        low, high = ends(found, 0.01 / 30)
        wrong += not low <= 1 <= high
    assert covered / trials > 0.94
    assert wrong == 0


def test_unpaired_verdicts_bear_a_host_that_drifts_three_times_as_much() -> None:
    rng = np.random.default_rng(2)
    above, below = (drifted(rng, 3 * UNPAIRED_SD, AGREEING, 300, 3) for _ in range(2))
    wrong = 0
    for one, other in zip(above, below, strict=True):
        found = ratio_intervals.between_runs(list(one), list(other))
        assert found is not None
        low, high = ends(found, 0.01 / 30)
        wrong += not low <= 1 <= high
    assert wrong == 0


def test_launches_make_an_unpaired_interval_wider_and_never_narrower() -> None:
    rng = np.random.default_rng(4)
    errors = {}
    for name, world in (("agree", AGREEING), ("disagree", World(0.3, 0.01, 0.0, 30))):
        for launches in (1, 12):
            (one,), (other,) = (drifted(rng, 0.0, world, 1, launches) for _ in range(2))
            found = ratio_intervals.between_runs(list(one), list(other))
            assert found is not None
            errors[name, launches] = found.error
    least = math.sqrt(2) * UNPAIRED_SD
    assert errors["agree", 1] == pytest.approx(least, rel=0.02)
    assert errors["agree", 12] == pytest.approx(least)
    assert errors["disagree", 12] > 3 * least


def test_a_large_unpaired_difference_is_found() -> None:
    rng = np.random.default_rng(8)
    (one,), (other,) = (drifted(rng, UNPAIRED_SD, AGREEING, 1, 3) for _ in range(2))
    found = ratio_intervals.between_runs([series + math.log(3) for series in one], list(other))
    assert found is not None
    assert ends(found, 0.01 / 30)[0] > 1
    assert found.value == pytest.approx(3, rel=0.2)
    assert found.launches == 3


@pytest.mark.parametrize(("launches", "drift"), [(2, 1.0), (3, 1.0), (5, 0.2), (5, 2.0)])
def test_blocks_of_one_run_are_compared_by_their_launches(launches: int, drift: float) -> None:
    """Processes of both are of one hour: what each differs by is its own."""
    rng = np.random.default_rng(launches)
    each = World(drift * UNPAIRED_SD, 0.01, 0.0, 30)
    trials, covered, widths = 300, 0, []
    for _ in range(trials):
        (one,), (other,) = (drifted(rng, 0.0, each, 1, launches) for _ in range(2))
        found = ratio_intervals.between_blocks(list(one), list(other))
        apart_in_time = ratio_intervals.between_runs(list(one), list(other))
        assert found is not None
        assert apart_in_time is not None
        assert not found.paired
        assert found.error < apart_in_time.error
        low, high = ends(found)
        covered += low <= 1 <= high
        widths.append(math.log(high / low) / 2)
    # The assumption gives way to what is seen, but not at once.
    assert covered / trials > (0.93 if drift <= 1 else 0.88)
    assert np.median(widths) < 4 * UNPAIRED_SD * max(1, drift) / math.sqrt(launches)


def test_what_has_no_samples_or_few_is_unpaired_without_an_interval() -> None:
    series = [np.zeros(16)]
    assert ratio_intervals.between_runs(series, []) is None
    assert ratio_intervals.between_runs([], series) is None
    found = ratio_intervals.between_runs([np.full(5, math.log(2))], series)
    assert found is not None
    assert (found.value, found.interval()) == (pytest.approx(2), None)


def test_a_quotient_of_ratios_has_both_errors() -> None:
    shared = PROCESS.freedom
    one, other = (
        Ratio(v, e, shared, 32, n, paired=True) for v, e, n in ((1.2, 3e-3, 1), (1, 4e-3, 3))
    )
    found = quotient(one, other)
    assert (found.value, found.error) == (pytest.approx(1.2), pytest.approx(5e-3))
    assert (found.rounds, found.launches, found.paired) == (32, 1, True)
    # All that either knows of its error is one and the same constant.
    assert found.freedom == pytest.approx(shared)
    # Welch's, for errors that know nothing of each other.
    welch = 25**2 / (9**2 / shared + 16**2 / shared)
    assert quotient(one, other, shared=0).freedom == pytest.approx(welch)
    assert quotient(replace(one, error=None), other).interval() is None


def test_the_noise_of_rounds_is_not_shared_by_a_quotients_ratios() -> None:
    """Only the spread between processes is assumed for both."""
    noisy = [estimate([np.random.default_rng(seed).normal(0, 0.1, 8)]) for seed in (1, 2)]
    quiet = [estimate([np.random.default_rng(seed).normal(0, 1e-5, 8)]) for seed in (1, 2)]
    assert min(one.freedom for one in noisy) < quotient(*noisy).freedom
    assert quotient(*noisy).freedom == pytest.approx(quotient(*noisy, shared=0).freedom, rel=0.05)
    assert quotient(*quiet).freedom == pytest.approx(PROCESS.freedom, rel=0.01)


@pytest.mark.parametrize("world", ["quiet", "dependent, heavy tails"])
def test_quotients_of_equal_ratios_cover_one(world: str) -> None:
    rng = np.random.default_rng(len(world))
    trials = 400
    covered = 0
    runs = (WORLDS[world].launches(rng, trials, n, rounds=32) for n in (1, 3))
    for one, other in zip(*runs, strict=True):
        low, high = ends(quotient(*(estimate(list(s)) for s in (one, other))))
        covered += low <= 1 <= high
    assert covered / trials > 0.94 - 4 * math.sqrt(0.94 * 0.06 / trials)


def test_rounds_of_one_process_cannot_make_it_sure() -> None:
    rng = np.random.default_rng(5)
    world = World(0.0, SD, 0.0, 30)
    (one,) = world.launches(rng, 1, 1, rounds=1024)
    (eight,) = world.launches(rng, 1, 8, rounds=128)
    alone, together = (estimate(list(series)) for series in (one, eight))
    assert alone.error == pytest.approx(SD, rel=0.05)
    assert together.error is not None
    assert together.error < SD / 2
    assert (alone.launches, together.launches) == (1, 8)
    assert alone.rounds == together.rounds == 1024


def test_gaps_cost_an_arm_its_own_rounds_only() -> None:
    samples = simulate(10, {"base": 1.0, "x": 1.2, "y": 1.3}, rounds=20)
    lost = (samples["arm"] == "x") & samples["round"].isin([0, 7, 19])
    rounds = Rounds.of(samples[~lost])
    series = rounds.paired({"x": "base", "y": "base", "absent": "base"})
    assert {arm: [len(values) for values in found] for arm, found in series.items()} == {
        "x": [17], "y": [20],
    }  # fmt: skip
    kept = [number for number in range(20) if number not in (0, 7, 19)]
    whole = Rounds.of(samples)
    np.testing.assert_array_equal(series["x"][0], whole.paired({"x": "base"}).get("x", [])[0][kept])
    found = spreads(rounds, "throughput")
    assert found["y"] == spreads(whole, "throughput")["y"]
    quartiles = np.quantile(whole.seconds("x")[kept], [0.25, 0.5, 0.75])
    spread = found["x"]
    assert spread.rounds == 17
    assert (spread.lower_quartile, spread.median, spread.upper_quartile) == pytest.approx(quartiles)


def test_dependent_rounds_count_for_less() -> None:
    rng = np.random.default_rng(3)
    free = rng.standard_normal(4096)
    bound = free.copy()
    for i in range(1, len(bound)):
        bound[i] += 0.5 * bound[i - 1]
    assert disturbances.inflation(free) == pytest.approx(1, abs=0.2)
    # The signs of such a series have autocorrelations asin(0.5^k) 2 / pi.
    truth = 1 + 2 * sum(2 / math.pi * math.asin(0.5**k) for k in range(1, 30))
    assert disturbances.inflation(bound) == pytest.approx(truth, rel=0.2)
    assert disturbances.inflation(np.ones(20)) == 1
    assert disturbances.inflation(np.tile([1.0, -1.0], 20)) == 1, "never below"


def test_few_rounds_still_have_a_value() -> None:
    found = ratio_of(simulate(3, {"x": 2.0, "base": 1.0}, rounds=5), "x", "base")
    assert (found.low, found.high, found.rounds, found.paired) == (None, None, 5, True)
    assert found.value == pytest.approx(2, rel=0.02)


def test_arms_of_different_attempts_are_unpaired_and_without_interval() -> None:
    samples = pd.concat(
        [
            simulate(4, {"base": 1.0}, rounds=201),
            simulate(5, {"x": 3.0}, rounds=201, attempt="alone"),
        ]
    )
    found = ratio_of(samples, "x", "base")
    assert not found.paired
    assert found.interval() is None


def test_rounds_pair_within_an_attempt_only() -> None:
    """Two attempts with equal round numbers but a tenfold slower host."""
    slow = simulate(7, {"x": 12.5, "base": 10.0}, attempt="slow")
    samples = pd.concat([simulate(6, {"x": 1.25, "base": 1.0}), slow])
    found = ratio_of(samples, "x", "base")
    assert (found.rounds, found.launches) == (32, 2)
    assert found.value == pytest.approx(1.25, rel=0.01)


def test_the_twin_measures_the_noise_floor() -> None:
    rounds = Rounds.of(simulate(8, {"base": 1.0, TWIN: 1.0}, rounds=30))
    floor = ratio_intervals.ratios(rounds, {TWIN: "base"})[TWIN]
    low, high = ends(floor)
    assert low < 1 < high
    assert max(1 / low, high) < 1.02


def test_intervals_are_students() -> None:
    ratio = Ratio(1.2, 0.01, 4.0, rounds=9, launches=1, paired=True)
    low, high = ends(ratio)
    # t of 4 degrees of freedom at 97.5 %.
    assert math.log(high / 1.2) == pytest.approx(0.02776, abs=1e-5)
    assert low * high == pytest.approx(1.2**2)
    strict = ends(ratio, 0.01)
    assert strict[0] < low
    assert strict[1] > high


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_quartiles_are_those_of_numpy(count: int) -> None:
    rounds = Rounds.of(simulate(9, {"x": 1.0}, rounds=count))
    found = spreads(rounds, "throughput")["x"]
    quartiles = np.quantile(rounds.seconds("x"), [0.25, 0.5, 0.75])
    assert (found.lower_quartile, found.median, found.upper_quartile) == pytest.approx(quartiles)


def test_the_spread_is_a_step_not_a_span() -> None:
    samples = pd.DataFrame(
        {
            "arm": "x", "launch": 0, "attempt": "a", "round": range(5),
            "steps": 4, "latency_steps": 4,
            "throughput_ns": [4_000, 8_000, 12_000, 16_000, 400_000],
            "latency_ns": [40_000] * 5, "wash_out_ns": 1_000,
        }
    )  # fmt: skip
    rounds = Rounds.of(samples)
    assert spreads(rounds, "throughput") == {"x": Spread(3e-6, 2e-6, 4e-6, rounds=5)}
    assert spreads(rounds, "latency") == {"x": Spread(1e-5, 1e-5, 1e-5, rounds=5)}
    assert ratio_intervals.ratios(rounds, {"x": "y"}) == {}


@pytest.mark.parametrize("rounds", [4, 40, 90])
def test_many_intervals_at_once_equal_those_of_single_ratios(rounds: int) -> None:
    """Two processes of different lengths, few rounds, and arms that share none."""
    arms = {"a": 1.0, "b": 1.3, "c": 0.8}
    samples = [
        simulate(1, arms, rounds),
        simulate(2, arms, rounds // 2, attempt="b"),
        simulate(3, {"d": 1.0}, rounds, attempt="c"),
    ]
    found = Rounds.of(pd.concat(samples))
    opponents = {"b": "a", "c": "a", "d": "a"}
    each = ratio_intervals.ratios(found, opponents)
    together = ratio_intervals.log_intervals(found, [*opponents.items()], 0.01)
    assert [not math.isnan(own[0]) for own in together] == [each[arm].paired for arm in opponents]
    for one, own in zip(each.values(), np.exp(together), strict=True):
        ends = one.interval(0.01) or (0, math.inf)
        assert not one.paired or own == pytest.approx([one.value, *ends], rel=1e-12)
