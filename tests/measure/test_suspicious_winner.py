from __future__ import annotations

import pytest

from bench.measure.suspicious_times import FACTOR, FEWEST, ODDS, compared, suspicious_winner

SHIPPED, OTHER, USER = "shipped", "slower", "mine"
CEILINGS = {
    "matmul_flops": 1e9, "memory_bytes": 1e9, "all_reduce_bytes": None, "all_reduce_s": None,
}  # fmt: skip
LEAST_S = 1e-3
"""Seconds of a step at the ceilings."""


def ok(**more) -> dict:
    return {"status": "ok", "model_flops": 1e6, "product_flops": 1e6, **more}


def samples(seconds: dict[str, float], rounds: int = 12, noise: float = 0.05) -> list[dict]:
    """Alternately so much slower and faster, each arm in rounds of its own."""
    return [
        {
            "arm": arm,
            "round": number,
            "steps": 10,
            "throughput_ns": 1e10 * each * (1 + noise * (-1) ** (number + place)),
        }
        for number in range(rounds)
        for place, (arm, each) in enumerate(seconds.items())
    ]


def found(seconds: dict[str, float], users=(USER,), rounds: int = 12, noise=0.05, **of_user):
    cells = {name: ok(**(of_user if name == USER else {})) for name in seconds}
    rows = samples(seconds, rounds, noise)
    return suspicious_winner({"devices": 1}, cells, rows, CEILINGS, users)


def test_an_approximate_step_is_no_winner_and_hides_none():
    seconds = {SHIPPED: 1.0, USER: 0.5, "sparse": 0.1}
    cells = {name: ok() for name in seconds} | {"sparse": ok(approximate="sparse")}
    suspicion = suspicious_winner(
        {"devices": 1}, cells, samples(seconds), CEILINGS, (USER, "sparse")
    )
    assert (suspicion.name, suspicion.finding["beside"]) == (USER, SHIPPED)


@pytest.mark.parametrize(
    ("seconds", "more", "beside", "why"),
    [
        ({SHIPPED: 1.0, OTHER: 2.0, USER: 0.5}, {}, SHIPPED, "2.00 times as fast as shipped"),
        ({SHIPPED: 1.0, USER: 0.9}, {"jax_config": ["x"]}, SHIPPED, "settings of the whole"),
        ({SHIPPED: 1.0, USER: 0.9}, {"threads_s": 0.05}, SHIPPED, "threads worked"),
        ({SHIPPED: 1.1 * LEAST_S, USER: LEAST_S}, {}, SHIPPED, "at best"),
        ({USER: LEAST_S}, {}, "", "at best"),
        # A shipped one is the better witness, even if it is slower.
        (
            {SHIPPED: 1.0, "theirs": 0.9, USER: 0.5},
            {"users": (USER, "theirs")},
            SHIPPED,
            "times as fast as shipped",
        ),
        (
            {USER: 1.0, "theirs": 2.0},
            {"users": (USER, "theirs")},
            "theirs",
            "times as fast as theirs",
        ),
    ],
)
def test_a_winner_that_is_suspicious(seconds, more, beside: str, why: str) -> None:
    suspicion = found(seconds, **more)
    assert (suspicion.name, suspicion.finding["beside"]) == (USER, beside)
    assert why in suspicion.finding["why"]
    wanted = seconds[USER] / seconds[beside] if beside else seconds[USER]
    assert suspicion.finding["ratio"] == pytest.approx(wanted, rel=0.1)
    assert suspicion.high >= suspicion.finding["ratio"]


@pytest.mark.parametrize(
    ("seconds", "more"),
    [
        ({SHIPPED: 1.0, USER: 1.05 / FACTOR}, {"noise": 0.0}),
        ({SHIPPED: 0.4, OTHER: 1.0, USER: 0.5}, {"jax_config": ["x"]}),
        ({SHIPPED: 1.0, USER: 0.5}, {"users": ()}),
        ({SHIPPED: 1.0, USER: 0.5}, {"foreign": {}}),
        ({SHIPPED: 1.0, USER: 0.5}, {"rounds": FEWEST - 1}),
        ({SHIPPED: 1.0, USER: 0.5}, {"noise": 0.9}),
        ({USER: 1.0}, {}),
        ({}, {}),
    ],
)
def test_a_winner_that_is_not(seconds, more) -> None:
    assert found(seconds, **more) is None


@pytest.mark.parametrize(
    ("seconds", "isolated", "ratio", "wrong"),
    [
        ({SHIPPED: 1.0, USER: 0.5}, {SHIPPED: 3.0, USER: 1.5}, 0.5, ""),
        ({SHIPPED: 1.0, USER: 0.5}, {SHIPPED: 1.0, USER: 0.45 * ODDS}, 0.45 * ODDS, ""),
        (
            {SHIPPED: 1.0, USER: 0.1},
            {SHIPPED: 2.0, USER: 2.0},
            1.0,
            "10 % of the time of shipped there, and 100 % of the time of shipped in a process",
        ),
        ({SHIPPED: 160e-6, USER: 13e-6}, {SHIPPED: 160e-6, USER: 26e-6}, 26 / 160, ""),
        ({USER: LEAST_S}, {USER: 1.8 * LEAST_S}, 1.8 * LEAST_S, ""),
        ({USER: LEAST_S}, {USER: 9 * LEAST_S}, 9 * LEAST_S, "took 1.00 ms there, and 9.00 ms in"),
    ],
)
def test_times_in_isolation(seconds, isolated, ratio: float, wrong: str) -> None:
    rows = samples(isolated, noise=0.0)
    finding, why = compared(found(seconds, noise=0.0), {name: ok() for name in isolated}, rows)
    assert finding["isolated_ratio"] == pytest.approx(ratio, rel=0.05)
    assert not finding["reason"]
    assert bool(why) == bool(wrong)
    assert wrong in why.replace("\N{NARROW NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("cells", "reason", "wrong"),
    [
        ({USER: {"status": "wrong", "reason": "why"}}, "mine is wrong: why", True),
        ({USER: {"status": "crashed", "reason": "why"}}, "mine is crashed: why", False),
        ({USER: ok(), SHIPPED: {"status": "wrong", "reason": "x"}}, "shipped is wrong: x", False),
        ({}, "it ended without samples", False),
    ],
)
def test_no_times_in_isolation(cells, reason: str, wrong: bool) -> None:
    cells = {name: {"implementation": name, **row} for name, row in cells.items()}
    finding, why = compared(found({SHIPPED: 1.0, USER: 0.5}), cells, [])
    assert finding["reason"] == reason
    assert finding["isolated_ratio"] is None
    assert why == ("in a process of its own, mine is wrong: why" if wrong else "")


@pytest.mark.parametrize(("step_s", "wrong"), [(50e-6, False), (3e-3, True)])
def test_a_host_that_delays_most_spans_of_a_short_step_does_not_make_it_wrong(step_s, wrong):
    """Its other spans show the step's time, unless that depends on the process."""
    rows = samples({SHIPPED: 3e-3, USER: step_s}, rounds=24, noise=0.0)
    for row in rows:
        if row["arm"] == USER and row["round"] % 8:
            row["throughput_ns"] += 4e6 * row["steps"]
    cells = {SHIPPED: ok(), USER: ok()}
    _, why = compared(found({SHIPPED: 3e-3, USER: 50e-6}, noise=0.0), cells, rows)
    assert bool(why) == wrong
