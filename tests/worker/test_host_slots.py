"""The system's counters, as they were while a turn ran."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import psutil
import pytest

from bench.worker.block_rounds import merged_turn
from bench.worker.time.turn_slots import HostWatch


def test_differences_are_taken_between_turns(tmp_path, monkeypatch):
    times = {"user": 10.0, "system": 0.1, "iowait": 0.0, "steal": 0.5}
    clock, own = [100.0], [7.0]
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(**times))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: own[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for core, khz in ((0, 2_000_000), (1, 3_000_000)):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    with HostWatch(tmp_path) as watch:
        clock[0], own[0] = 100.5, 7.25
        times.update(user=10.5, steal=0.6, iowait=4.0)
        slot = watch.slot()
        assert slot["cores_s"] == 2.0
        assert slot["steal_s"] == pytest.approx(0.1)
        # Half a second was used, a quarter of it by this process; waiting for a disk is no use.
        assert slot["foreign_s"] == pytest.approx(0.25)
        assert slot["mhz"] == 2500
        again = watch.slot()
        assert (again["cores_s"], again["steal_s"], again["foreign_s"]) == (0, 0, 0)
        (tmp_path / "cpu0/cpufreq/scaling_cur_freq").write_text("<unknown>\n")
        assert watch.slot()["mhz"] is None


def test_what_the_system_does_not_count_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0, system=1.0))
    with HostWatch(tmp_path) as watch:
        slot = watch.slot()
    assert (slot["steal_s"], slot["mhz"]) == (0, None)


def test_a_figure_that_one_process_lacks_is_left_out():
    host = {"cores_s": 1.0, "steal_s": 0.0, "own_s": 0.25, "foreign_s": 0.5, "mhz": None}
    energy = {"joules": 1.5, "seconds": 0.5}
    figures = {
        "host": host, "throughput_ns": 7, "latency_ns": 2, "wash_out_ns": 1, "energy": energy,
    }  # fmt: skip
    slower = {**figures, "throughput_ns": 9, "latency_ns": 1, "boards": {"throttled": ""}}
    found = merged_turn([figures, slower], ["here", "here"])
    assert found.keys() == {
        "host", "throughput_ns", "process_throughput_ns", "latency_ns", "wash_out_ns", "energy",
    }  # fmt: skip
    assert (found["throughput_ns"], found["process_throughput_ns"]) == (9, [7, 9])
    assert found["energy"] == {"joules": 3.0, "seconds": 0.5}
    assert (found["host"]["own_s"], found["host"]["foreign_s"]) == (0.5, 0.25)
    del slower["energy"]
    assert "energy" not in merged_turn([figures, slower], ["here", "here"])
