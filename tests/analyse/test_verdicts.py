"""Verdicts are right as often as promised, however often one looks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.analyse.alpha_spending import AlphaSpending
from bench.analyse.comparisons import alpha_of
from bench.analyse.process_spread import PROCESS
from bench.analyse.ratio_intervals import Ratio, compare, estimate
from bench.analyse.sample_rounds import Rounds
from bench.analyse.verdicts import claim, decide, launches_to_decide
from bench.records.messages import is_look
from bench.records.rows import Look


def ratio(value: float, error: float | None = 0.001, freedom: float = 1000) -> Ratio:
    return Ratio(value, error, freedom, rounds=16, launches=1, paired=True)


@pytest.mark.parametrize(
    ("value", "error", "word"),
    [
        (1.000, 0.001, "same"),
        (1.010, 0.001, "same"),  # a difference there is, and it does not matter
        (0.990, 0.001, "same"),
        (1.019, 0.001, "slower"),  # the interval reaches beyond the margin
        (1.050, 0.001, "slower"),
        (0.950, 0.001, "faster"),
        (1.000, 0.010, "undecided"),
        (1.050, 0.030, "undecided"),
        (1.020, 0.002, "slower"),
        (1.050, None, "undecided"),
    ],
)
def test_words(value: float, error: float | None, word: str) -> None:
    verdict = decide(ratio(value, error), alpha=0.01, margin=0.02)
    assert verdict.word == word
    assert verdict.low < value < verdict.high
    assert verdict.decided == (word != "undecided")


def test_the_margin_is_the_same_either_way() -> None:
    for value in (1.0, 1.018, 1.03, 1.1):
        there, back = (decide(r, 0.01) for r in (ratio(value), ratio(1 / value)))
        assert {there.word, back.word} in ({"same"}, {"slower", "faster"})


def test_looks_double() -> None:
    assert [rounds for rounds in range(300) if is_look(rounds)] == [16, 32, 64, 128, 256]


def measure(rng: np.random.Generator, effect: float, launches: int, noise: float) -> list[str]:
    """Measure two arms as the engine does, looking at 16, 32, 64 rounds of each launch."""
    spending = AlphaSpending()
    series: list[np.ndarray] = []
    words = []
    for _ in range(launches):
        process = effect + PROCESS.sd * rng.standard_normal()
        whole = process + noise * rng.standard_t(4, 64)
        for rounds in (16, 32, 64):
            seen = [*series, whole[:rounds]]
            total = sum(map(len, seen))
            verdict = decide(estimate(seen), spending.look(total, total / (64 * launches)))
            if verdict.decided:
                break
        series.append(whole[:rounds])
        words.append(verdict.word)
    return words


@pytest.mark.parametrize("noise", [0.003, 0.06])
@pytest.mark.parametrize("launches", [1, 3])
def test_identical_programs_are_hardly_ever_called_different(noise: float, launches: int) -> None:
    rng = np.random.default_rng(1)
    trials = 250
    false = [
        word
        for _ in range(trials)
        for word in set(measure(rng, 0.0, launches, noise))
        if word in ("faster", "slower")
    ]
    assert len(false) <= 0.01 * trials


def test_real_differences_are_found_and_never_with_the_wrong_sign() -> None:
    rng = np.random.default_rng(2)
    trials = 100
    last = [measure(rng, math.log(1.05), 3, 0.02)[-1] for _ in range(trials)]
    assert last.count("slower") >= 0.95 * trials
    assert "faster" not in last
    last = [measure(rng, -math.log(1.05), 3, 0.02)[-1] for _ in range(trials)]
    assert last.count("faster") >= 0.95 * trials
    assert "slower" not in last


def test_the_cost_of_deciding_is_about_right() -> None:
    undecided = ratio(1.012, 0.01)
    times = launches_to_decide(undecided, decide(undecided, 0.01))
    error = 0.01 / math.sqrt(times)
    assert decide(ratio(1.012, error * 0.99), 0.01).decided
    assert not decide(ratio(1.012, error * 1.01), 0.01).decided
    assert launches_to_decide(ratio(1.0, None), decide(ratio(1.0, None), 0.01)) == math.inf
    assert claim(ratio(1.2, 0.01), 0.01, 0.02).to_decide == 0


def test_half_the_width_is_that_of_the_interval_that_is_shown() -> None:
    shown = ratio(1.25, 0.02)
    assert (shown.low, shown.high) == shown.interval(0.05)
    assert shown.half_width() == pytest.approx(math.log(shown.high / shown.low) / 2)
    assert shown.half_width() == pytest.approx(1.96 * 0.02, rel=0.01)
    assert ratio(1.25, None).half_width() == math.inf


def rounds_of(**arms: float) -> Rounds:
    rng = np.random.default_rng(0)
    table = 0.01 * np.exp(0.1 * rng.standard_normal((32, 1)) + 1e-3 * rng.standard_normal((32, 3)))
    table *= np.array(list(arms.values()))
    return Rounds(tuple(arms), np.zeros(32, int), table, table)


def test_arms_may_have_opponents_of_their_own() -> None:
    rounds = rounds_of(base=1.0, slow=1.3, same=1.0)
    opponents = {"slow": "base", "base": "slow", "same": "base", "absent": "base"}
    found = compare(rounds, opponents, 0.001, 0.02)
    assert {name: claim.verdict.word for name, claim in found.items()} == {
        "slow": "slower", "base": "faster", "same": "same",
    }  # fmt: skip
    strict = found["slow"].ratio.interval(0.001)
    assert (found["slow"].verdict.low, found["slow"].verdict.high) == strict


def test_no_launches_decide_an_equal_ratio_without_a_margin() -> None:
    equal = ratio(1.0)
    assert launches_to_decide(equal, decide(equal, 0.01, margin=0.0), margin=0.0) == math.inf


def test_a_proved_ratio_needs_no_rounds() -> None:
    few = ratio(1.3, error=None, freedom=0.0)
    assert claim(few, 0.01, 0.02, same=True).ratio.shown == (1.0, 1.0)


def test_no_error_left_makes_no_verdict() -> None:
    rounds = rounds_of(base=1.0, x=1.008, y=1.0)
    wide, narrow = (
        compare(rounds, {"x": "base"}, alpha, 0.02)["x"].verdict for alpha in (0.001, 0.008)
    )
    assert wide.low < narrow.low < narrow.high < wide.high
    assert compare(rounds, {"x": "base"}, 0.0, 0.02)["x"].verdict.word == "undecided"


def test_the_error_of_a_claim_is_the_largest_since_it_was_settled_for_the_last_time() -> None:
    errors = (0.008, 0.006, 0.001, 0.004, 0.002)
    settled = (["a"], ["a"], [], ["a"], ["a", "b"])
    looks = [
        Look(rounds=16, alpha=error, spent=error, settled=names)
        for error, names in zip(errors, settled, strict=True)
    ]
    assert [alpha_of(arm, looks) for arm in "abc"] == [0.004, 0.002, 0.002]
    assert alpha_of("a", []) == 0
