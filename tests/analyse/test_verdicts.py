"""Verdicts are right as often as promised, however often one looks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.analyse.ratio_intervals import PROCESS_SD, Ratio, estimate
from bench.analyse.sample_rounds import Rounds
from bench.analyse.verdicts import (
    ALPHA,
    AlphaSpending,
    claims,
    compare,
    decide,
    launches_to_decide,
    look_rounds,
    pairs,
)


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
    assert look_rounds(16) == []
    assert look_rounds(17) == [16]
    assert look_rounds(100) == [16, 32, 64]


def test_all_looks_together_spend_no_more_than_there_is() -> None:
    spending = AlphaSpending(planned=3 * 64)
    planned = [spending.look(r, last_planned=r == 192) for r in (16, 32, 64, 80, 96, 128, 144, 192)]
    assert sum(planned) == pytest.approx(0.8 * ALPHA)
    # In proportion to the rounds since the look before.
    assert planned[2] == pytest.approx(0.8 * ALPHA * 32 / 192)
    extra = [spending.look(192 + 64 * i, last_planned=False) for i in range(1, 30)]
    assert all(alpha > 0 for alpha in extra)
    assert spending.spent < ALPHA
    assert [look["alpha"] for look in spending.looks] == [*planned, *extra]
    # Twice the rounds of the plan may spend half of the reserve.
    assert sum(extra[:3]) == pytest.approx(0.2 * ALPHA / 2)
    # A resumed run goes on where it stopped.
    again = AlphaSpending(192, spending.looks[:9])
    assert again.look(320, last_planned=False) == extra[1]


@pytest.mark.parametrize("arms", [2, 7])
def test_more_launches_than_planned_make_verdicts_easier(arms: int) -> None:
    spending = AlphaSpending(planned=3 * 64)
    widths = {}
    for launch in range(48):
        for rounds in (16, 32, 64):
            last = launch == 2 and rounds == 64
            alpha = spending.look(64 * launch + rounds, last_planned=last)
        whole = Ratio(1.0, 0.01 / math.sqrt(launch + 1), 1e6, 64, launch + 1, paired=True)
        widths[launch + 1] = whole.half_width(alpha / pairs(arms))
    assert widths[6] < 0.9 * widths[3]
    assert widths[12] < 0.8 * widths[6]
    assert widths[48] < 0.6 * widths[12]
    assert spending.spent < ALPHA


def test_what_early_looks_leave_is_there_for_the_last_planned_one() -> None:
    spending = AlphaSpending(planned=192)
    spending.look(16, last_planned=False)
    assert spending.look(48, last_planned=True) == pytest.approx(0.8 * ALPHA * (1 - 16 / 192))


def test_looking_again_at_the_same_rounds_is_one_look() -> None:
    spending = AlphaSpending(planned=192)
    first = spending.look(16, last_planned=False)
    assert spending.look(16, last_planned=False) == first
    assert spending.look(16, last_planned=True) == pytest.approx(0.8 * ALPHA)
    assert len(spending.looks) == 1
    assert spending.spent == pytest.approx(0.8 * ALPHA)


def test_pairs() -> None:
    assert [pairs(arms) for arms in (0, 1, 2, 3, 7)] == [1, 1, 1, 3, 21]


def measure(rng: np.random.Generator, effect: float, launches: int, noise: float) -> list[str]:
    """Measure two arms as the engine does, looking at 16, 32, 64 rounds of each launch."""
    spending = AlphaSpending(planned=launches * 64)
    series: list[np.ndarray] = []
    words = []
    for launch in range(launches):
        process = effect + PROCESS_SD * rng.standard_normal()
        whole = process + noise * rng.standard_t(4, 64)
        for rounds in (16, 32, 64):
            seen = [*series, whole[:rounds]]
            last = launch == launches - 1 and rounds == 64
            total = sum(map(len, seen))
            verdict = decide(estimate(seen), spending.look(total, last_planned=last))
            if verdict.decided:
                break
        series.append(whole[:rounds])
        words.append(verdict.word)
    return words


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.06])
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
    times = launches_to_decide(undecided, alpha=0.01)
    error = 0.01 / math.sqrt(times)
    assert decide(ratio(1.012, error * 0.99), 0.01).decided
    assert not decide(ratio(1.012, error * 1.01), 0.01).decided
    assert launches_to_decide(ratio(1.0, None), 0.01) == math.inf


def rounds_of(**arms: float) -> Rounds:
    rng = np.random.default_rng(0)
    table = 0.01 * np.exp(0.1 * rng.standard_normal((32, 1)) + 1e-3 * rng.standard_normal((32, 3)))
    table *= np.array(list(arms.values()))
    nothing = np.full_like(table, np.nan)
    return Rounds(tuple(arms), np.zeros(32, int), table, table, nothing, nothing)


def test_claims_are_about_all_arms_but_the_baseline() -> None:
    rounds = rounds_of(base=1.0, slow=1.3, same=1.0)
    arms = ["base", "slow", "same", "absent"]
    found = claims(rounds, arms, "base", 0.008, 0.02)
    assert {name: claim.verdict.word for name, claim in found.items()} == {
        "slow": "slower", "same": "same",
    }  # fmt: skip
    assert found["slow"].to_decide == 0
    other = claims(rounds, arms, "slow", 0.008, 0.02)
    assert other["base"].verdict.word == "faster"
    # Of four arms there are six pairs: each is held to a sixth of the error.
    strict = found["slow"].ratio.interval(0.008 / 6)
    assert (found["slow"].verdict.low, found["slow"].verdict.high) == strict


def test_arms_may_have_opponents_of_their_own() -> None:
    rounds = rounds_of(base=1.0, slow=1.3, same=1.0)
    opponents = {"slow": "base", "base": "slow", "same": "base", "absent": "base"}
    found = compare(rounds, opponents, 0.001, 0.02)
    assert {name: claim.verdict.word for name, claim in found.items()} == {
        "slow": "slower", "base": "faster", "same": "same",
    }  # fmt: skip
    strict = found["slow"].ratio.interval(0.001)
    assert (found["slow"].verdict.low, found["slow"].verdict.high) == strict


def test_more_pairs_and_no_error_left_make_verdicts_harder() -> None:
    rounds = rounds_of(base=1.0, x=1.008, y=1.0)
    wide = claims(rounds, ["base", *"xyz"], "base", 0.008, 0.02)["x"].verdict
    narrow = claims(rounds, ["base", "x"], "base", 0.008, 0.02)["x"].verdict
    assert wide.low < narrow.low < narrow.high < wide.high
    never = claims(rounds, ["base", "x"], "base", 0.0, 0.02)["x"].verdict
    assert never.word == "undecided"
