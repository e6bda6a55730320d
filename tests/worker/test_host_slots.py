"""The kernel's counters, as they were while a turn ran."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.worker.time.host_slots import HostWatch


def stat(path: Path, user: int, steal: int, iowait: int = 0) -> None:
    """A /proc/stat in ticks; what follows the first line must not matter."""
    path.write_text(
        f"cpu  {user} 0 10 999 {iowait} 0 0 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8\nintr 5\n"
    )


def test_differences_are_taken_between_turns(tmp_path, monkeypatch):
    tick = os.sysconf("SC_CLK_TCK")
    path = tmp_path / "stat"
    stat(path, user=1000, steal=50)
    clock, own = [100.0], [7.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: own[0])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    for core, khz in ((0, 2_000_000), (1, 3_000_000)):
        folder = tmp_path / f"cpu{core}" / "cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
    with HostWatch(path, str(tmp_path)) as watch:
        clock[0], own[0] = 100.5, 7.25
        stat(path, user=1000 + tick // 2, steal=50 + tick // 10, iowait=400)
        slot = watch.slot()
        assert slot is not None
        assert slot["cores_s"] == 2.0
        assert slot["steal_s"] == pytest.approx(0.1)
        # Half a second was used, a quarter of it by this process; waiting for a disk is no use.
        assert slot["foreign_s"] == pytest.approx(0.25)
        assert slot["mhz"] == 2500
        again = watch.slot()
        assert again is not None
        assert (again["cores_s"], again["steal_s"], again["foreign_s"]) == (0, 0, 0)


def test_where_the_system_tells_nothing(tmp_path):
    with HostWatch(tmp_path / "stat", str(tmp_path)) as watch:
        assert watch.slot() is None
