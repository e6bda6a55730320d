"""What turns tell beside their times is divided by what it belongs to."""

from __future__ import annotations

import pandas as pd

from bench.analyse.turn_details import Throttling, input_waits, throttling


def test_waits_are_those_of_a_step() -> None:
    columns = ["arm", "steps", "input_wait_ns", "input_starved_ns"]
    rows = [("a", 10, 5e9, 1e9), ("a", 20, 10e9, 2e9), ("single", 1, 3e9, 0)]
    found = input_waits(pd.DataFrame(rows, columns=columns))
    assert found == {
        "a": {"wait_s": 0.5, "starved_s": 0.1},
        "single": {"wait_s": 3.0, "starved_s": 0.0},
    }


def test_throttled_turns_are_counted_and_the_arm_with_the_most_is_named() -> None:
    marks = {"rarely": ["", "", "", "heat"], "often": ["heat", "power; heat"], "never": [""]}
    rows = [("x", arm, mark) for arm, own in marks.items() for mark in own]
    found = throttling(pd.DataFrame(rows, columns=["block", "arm", "boards_throttled"]))
    assert found == Throttling(3, 7, {"heat": 3, "power": 1}, "x", "often")
