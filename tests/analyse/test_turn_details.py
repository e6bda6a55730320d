"""What turns tell beside their times is divided by what it belongs to."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from bench.analyse.turn_details import input_waits, throttled_arms, timeline


def test_waits_are_those_of_a_step() -> None:
    columns = ["arm", "steps", "input_wait_ns", "input_starved_ns"]
    rows = [("a", 10, 5e9, 1e9), ("a", 20, 10e9, 2e9), ("single", 1, 3e9, 0)]
    assert input_waits(pd.DataFrame(rows, columns=columns)) == {
        "a": {"wait_s": 0.5, "starved_s": 0.1},
        "single": {"wait_s": 3.0, "starved_s": 0.0},
    }


def test_the_arms_that_were_throttled_most_come_first() -> None:
    marks = {"rarely": ["", "", "", "heat"], "often": ["heat", "power; heat"], "never": [""]}
    rows = [("x", arm, mark) for arm, own in marks.items() for mark in own]
    found = throttled_arms(pd.DataFrame(rows, columns=["block", "arm", "boards_throttled"]))
    assert [(one.arm, one.throttled, one.turns) for one in found] == [
        *[("often", 2, 2), ("rarely", 1, 4)]
    ]
    assert found[0].reasons == {"heat": 2, "power": 1}


def test_a_timeline_has_minutes_shares_of_the_cores_and_the_baselines_pace() -> None:
    frame = pd.DataFrame(
        [
            {
                "block": block, "launch": 0, "attempt": block, "round": number, "at": at,
                "arm": arm, "steps": 2, "throughput_ns": 2e6 * pace, "host_cores_s": 4.0,
                "host_foreign_s": foreign, "host_steal_s": 0.2, "host_mhz": 2000.0 + number,
            }
            for block, number, at, pace, foreign in [
                ("x", 1, 220.0, 3.0, 0.8), ("x", 0, 100.0, 1.0, 0.4), ("y", 0, 160.0, 9.0, 0.0)
            ]
            for arm in ("base", "other")
        ]
    )  # fmt: skip
    found = timeline(frame, {"x": "base", "y": "other"})
    assert found["minutes"].tolist() == [0, 1, 2]
    assert found["relative"].tolist() == [0.5, 1.0, 1.5]
    assert found["foreign"].tolist() == pytest.approx([0.1, 0.0, 0.2])
    assert found["steal"].tolist() == pytest.approx([0.05] * 3)
    assert found["mhz"].tolist() == [2000, 2000, 2001]
    unknown = timeline(frame.assign(host_cores_s=math.nan), {"x": "base", "y": "other"})
    assert unknown["foreign"].isna().all()
