"""What turns tell beside their times is divided by what it belongs to."""

from __future__ import annotations

import pandas as pd
import pytest

from bench.analyse.turn_details import input_waits, throttling


def test_waits_are_those_of_a_step() -> None:
    columns = ["arm", "steps", "latency_steps", "input_wait_ns", "input_starved_ns"]
    rows = [("a", 10, 4, 5e9, 1e9, 1e9), ("a", 20, 4, 10e9, 2e9, 1e9), ("single", 1, 0, 3e9, 0, 0)]
    found = input_waits(pd.DataFrame(rows, columns=[*columns, "input_latency_wait_ns"]))
    assert found == {
        "a": {"wait_s": 0.5, "starved_s": 0.1, "latency_wait_s": 0.25},
        "single": {"wait_s": 3.0, "starved_s": 0.0, "latency_wait_s": 3.0},
    }


def test_the_arms_that_were_throttled_most_come_first() -> None:
    marks = {"rarely": ["", "", "", "heat"], "often": ["heat", "power; heat"], "never": [""]}
    rows = [("x", arm, mark, 2e6) for arm, own in marks.items() for mark in own]
    frame = pd.DataFrame(rows, columns=["block", "arm", "boards_throttled", "boards_read_ns"])
    found = throttling(frame)
    assert found is not None
    assert [(one.arm, one.throttled, one.turns) for one in found.arms] == [
        *[("often", 2, 2), ("rarely", 1, 4)]
    ]
    assert found.arms[0].reasons == {"heat": 2, "power": 1}
    assert found.reading_s == pytest.approx(2e-3)
