"""Times that cannot be are refused by figures that a file in the worker does not reach."""

from __future__ import annotations

import pytest

from bench.measure.suspicious_times import GAP_S, LATE_S, SAFETY, UNCACHED, reasons_against
from bench.records.arms import TWIN

BLOCK = {"processes": 1, "devices": 2, "baseline": "a"}
CEILINGS = {
    "matmul_flops": 1e9,
    "memory_bytes": 1e9,
    "all_reduce_bytes": None,
    "all_reduce_s": None,
}
SPAN_S = 0.1
GAP = 0.002


def taken(rounds=16, arms=("a", "b", "c", TWIN), factors=(), gaps=()):
    """Rows of turns: `factors` scale what an arm's clock says of its spans, `gaps` come on top."""
    rows, at = [], 1.7e9
    for number in range(rounds):
        for position in range(len(arms)):
            arm = arms[(number + position) % len(arms)]
            told = int(SPAN_S * 1e9 * dict(factors).get(arm, 1.0))
            rows.append({
                "arm": arm, "round": number, "at": at, "steps": 10,
                "throughput_ns": told, "latency_ns": told // 4, "wash_out_ns": told // 10,
            })  # fmt: skip
            at += 1.35 * SPAN_S + GAP + dict(gaps).get(arm, 0.0)
    return rows


def refused(rows, *, ceilings=CEILINGS, rounds_s=1e6, block=BLOCK, **cells):
    rows_of = {name: cells.get(name, {}) for name in ("a", "b", "c")}
    return reasons_against(block, rows_of, rows, ceilings, rounds_s)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({}, {}),
        ({"gaps": {"b": GAP_S}}, {}),  # a slow harness, or a busy host
        ({"factors": {"b": 0.85}}, {}),  # as far as busy hosts go
        ({"factors": {"b": 0.1}}, {"b": "shorter than its turns"}),
        ({"factors": {"b": 1e-4}}, {"b": "shorter than its turns"}),
        ({"factors": {"b": 3.0}}, {"b": "longer than its turns"}),
        ({"factors": {TWIN: 0.1}}, {"a": "shorter than its turns"}),
        ({"factors": {"b": 0.1}, "rounds": 4}, {}),  # too few to tell
    ],
)
def test_spans_fit_their_turns(made, words):
    found = refused(taken(**made))
    assert found.keys() == words.keys()
    assert all(words[name] in found[name] for name in words)


def test_checks_take_no_part_in_the_comparison():
    """An arm that is suspected twice is checked more often than others."""
    rows = taken(rounds=32)
    extra = 0.0
    for row in rows:
        row["at"] += extra
        if row["arm"] == "b" and row["round"] % 3:
            row["checked"] = True
            extra += SPAN_S
    assert refused(rows) == {}
    for row in rows:
        row.pop("checked", None)
    assert set(refused(rows)) == {"b"}


@pytest.mark.parametrize("liar", ["", "b"])
def test_in_a_short_run_a_check_is_compared_with_checks(liar):
    """In later launches few arms are left, and most turns of some are checked."""
    rows = taken(rounds=10, factors={liar: 0.1})
    extra = 0.0
    for row in rows:
        row["at"] += extra
        if row["round"] % 3 < (2 if row["arm"] == "b" else 1):
            row["checked"] = True
            extra += SPAN_S
    assert set(refused(rows)) == set(liar)


@pytest.mark.parametrize(("checked", "found"), [(("b",), set()), (("a", "b", "c"), {"b"})])
def test_a_few_turns_that_can_be_compared_convict_no_arm(checked, found):
    """Those that are checked need others that are."""
    rows = taken(rounds=14, arms=("a", "b", "c"), factors={"b": 0.1})
    for row in rows:
        if row["arm"] in checked and row["round"] < 9:
            row["checked"] = True
    assert set(refused(rows)) == found


@pytest.mark.parametrize(("liar", "rounds"), [("", 12), ("", 2000), ("b", 32)])
def test_a_host_that_delays_many_turns_convicts_no_arm(liar, rounds):
    """A third of all turns is late; by chance, most of one arm's few turns are."""
    rows = taken(rounds=rounds, factors={liar: 0.1})
    extra = 0.0
    for number, row in enumerate(rows):
        row["at"] += extra
        unlucky = rounds == 12 and row["arm"] == "b" and row["round"] < 6
        extra += SPAN_S if unlucky or number % 3 == 0 else 0.0
    assert set(refused(rows)) == set(liar)


def test_arms_beside_an_implementations_own_are_not_compared():
    assert refused(taken(arms=("a", "b", "b+input"), factors={"b+input": 0.1})) == {}


def test_spans_of_other_processes_are_not_compared_with_turns():
    assert refused(taken(factors={"b": 0.1}), b={"foreign": {}}) == {}


def test_all_spans_fit_what_passed_outside():
    rows = taken()
    spans_s = len(rows) * 1.35 * SPAN_S
    assert refused(rows, rounds_s=1.01 * spans_s - LATE_S) == {}
    found = refused(rows, rounds_s=0.99 * spans_s - LATE_S)
    assert set(found) == {"a", "b", "c"}
    assert "passed by the supervisor's clock" in found["a"]


STEP_S = SPAN_S / 10
MOST = SAFETY * STEP_S * 1e9 * BLOCK["devices"]
"""FLOPs of the whole step that are just within what is allowed."""


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"model_flops": 0.99 * MOST}, ""),
        ({"model_flops": 1.01 * MOST}, "FLOP in products on each device"),
        ({"model_flops": 1.01 * MOST, "product_flops": 1.0}, ""),  # the formula says too much
        ({}, ""),
    ],
)
def test_no_step_is_far_faster_than_the_machine(row, words):
    found = refused(taken(), b=row)
    assert (set(found) == {"b"}) if words else not found
    assert words in found.get("b", "")
    assert refused(taken(), b=row, ceilings=None) == {}


def test_optimizer_state_that_no_cache_holds_has_to_be_moved():
    size = int(1.01 * SAFETY * STEP_S * 1e9 * BLOCK["devices"] / 2)
    assert refused(taken(), block=BLOCK | {"optimizer_bytes": size}) == {}, "a cache holds it"
    slow = CEILINGS | {"memory_bytes": UNCACHED / 10 * STEP_S}
    found = refused(taken(), block=BLOCK | {"optimizer_bytes": 3 * UNCACHED}, ceilings=slow)
    assert set(found) == {"a", "b", "c"}
    assert "read and written" in found["a"]
