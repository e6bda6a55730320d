"""What is said where comparisons are undecided."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.analyse.disturbances import Conditions
from bench.analyse.verdicts import Claim, Verdict
from bench.present.closing_summary import next_steps


def told(
    word="undecided",
    low=0.99,
    high=1.02,
    to_decide=3.0,
    foreign=0.0,
    seconds=100.0,
    config=None,
    argv=(),
):
    claim = Claim(None, Verdict(word, low, high), to_decide)
    conditions = Conditions(steal=0.0, foreign=foreign, mhz=None)
    standings = SimpleNamespace(largest_ratio=1.0)
    block = SimpleNamespace(
        name="b", claims={"arm": claim}, conditions=conditions, standings=standings, margin=0.02
    )
    taken = [{"measure": seconds}] if isinstance(seconds, float) else seconds
    rows = [
        {"block": "b", "launch": number, "seconds": own} for number, own in enumerate(taken)
    ] + [{"block": "c", "launch": 0, "seconds": {"measure": 9e9}}]
    manifest = {"config": config or {}, "argv": ["run", *argv]}
    run = SimpleNamespace(directory=Path("reports/r"), block_rows=rows, manifest=manifest)
    return list(next_steps(SimpleNamespace(comparisons=[block]), run))


def test_nothing_is_said_where_all_is_decided():
    assert told(word="same") == []
    assert told(word="slower") == []
    assert told(config={"functions": True}) == [], "a race cannot be resumed"
    assert told(config={"regress": {}}) == [], "nor can a gate"


def test_within_nox_commands_are_sessions(monkeypatch):
    monkeypatch.setenv("NOX_CURRENT_SESSION", "bench")
    assert told()[2].strip() == "nox -s bench -- --resume r --budget 200"


@pytest.mark.parametrize("words", [["--distributed", "env"], ["--distributed=env"]])
def test_a_run_of_a_launcher_is_resumed_by_the_launcher(words):
    more = told(argv=["--rounds", "4", *words, "-k", "pmap"])[2]
    assert more.endswith(f"run --resume r {' '.join(words)} --budget 200")


def test_the_bound_the_reason_and_the_command_are_named():
    sure, _, more, offer, margin = told()
    assert sure.startswith("1 comparison is undecided, but within 2")
    assert "small for so few rounds" in sure
    # Three times the 100 seconds so far are needed, of which one time is done.
    assert more.endswith("run --resume r --budget 200")
    assert "2 %" in offer
    assert margin.endswith("run --resume r --margin 2")
    assert "while b was timed, other processes used 30" in told(foreign=0.3)[0]
    assert "small" in told(foreign=0.04)[0]


@pytest.mark.parametrize("to_decide", [math.inf, 1.1])
def test_a_launch_more_is_the_least(to_decide):
    assert told(to_decide=to_decide)[2].endswith("--budget 100")


def test_what_only_the_first_launch_does_is_not_planned_again():
    once = {"ceilings": 40.0, "trace": 60.0, "checkpoint": 100.0, "train": 900.0}
    assert told(seconds=[{"start": 10.0, "measure": 90.0} | once])[2].endswith("--budget 200")


def test_a_run_of_several_launches_may_need_but_one_more():
    launches = [{"gate": 500.0, "measure": 100.0}, {"measure": 100.0}, {"measure": 100.0}]
    assert told(seconds=launches, to_decide=1.1)[2].endswith("--budget 100")
    assert told(seconds=launches, to_decide=2.0)[2].endswith("--budget 300")


def test_without_a_bound_no_margin_is_offered_and_endless_rounds_are_not():
    sure, _, _more = told(low=0.0, high=math.inf)
    assert "without any bound" in sure
    assert "unlikely to decide" in told(to_decide=1e4)[1]
    assert told(to_decide=1e4)[2].endswith("--budget 60")
