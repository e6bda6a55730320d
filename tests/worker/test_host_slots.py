"""The system's counters, as they were while a turn ran."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import psutil
import pytest

from bench.worker.time.host_slots import HostWatch


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
    with HostWatch(str(tmp_path)) as watch:
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


def test_what_the_system_does_not_count_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0, system=1.0))
    with HostWatch(str(tmp_path)) as watch:
        slot = watch.slot()
    assert (slot["steal_s"], slot["mhz"]) == (0, None)
