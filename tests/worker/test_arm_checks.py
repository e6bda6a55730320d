"""Work that continues after a span is noticed, also where it hardly gets a core."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from bench.worker.prove import arm_checks
from bench.worker.time.clock import Arm

ARM = cast(Arm, SimpleNamespace(run=lambda _: None, children_cpu_s=lambda: 0.0))


class Host:
    """A clock on which this process gets a share of a core while it works late."""

    def __init__(self, share: float, late_s: float) -> None:
        self.now, self.cpu, self.share, self.left = 0.0, 0.0, share, late_s

    def sleep(self, seconds: float) -> None:
        used = min(self.left, self.share * seconds)
        self.now, self.cpu, self.left = self.now + seconds, self.cpu + used, self.left - used


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch):
    def host(share: float, late_s: float) -> Host:
        made = Host(share, late_s)
        clock = SimpleNamespace(
            sleep=made.sleep, process_time=lambda: made.cpu,
            monotonic=lambda: made.now, perf_counter=lambda: made.now,
        )  # fmt: skip
        monkeypatch.setattr(arm_checks, "time", clock)
        monkeypatch.setattr(arm_checks, "_waits_for_a_core", lambda: made.left > 0)
        return made

    return host


@pytest.mark.parametrize("share", [1.0, 0.2, 0.05, 0.025])
def test_late_work_is_found_whatever_share_of_a_core_it_gets(on, share):
    on(share, late_s=0.2)
    assert "its threads still used 0." in arm_checks.late_work(ARM, 3, allowed_s=0.08)
    on(share, late_s=0.2)
    assert arm_checks.is_late()


@pytest.mark.parametrize("share", [1.0, 0.2, 0.05, 0.025])
def test_little_late_work_is_allowed_however_long_it_waits(on, share):
    on(share, late_s=0.06)
    assert not arm_checks.late_work(ARM, 3, allowed_s=0.08)


def test_an_idle_process_is_not_watched_for_long(on):
    host = on(1.0, late_s=0.0)
    assert not arm_checks.late_work(ARM, 3, allowed_s=0.08)
    assert host.now < 0.2


def test_a_watch_ends_though_threads_wait_forever(on):
    host = on(0.0, late_s=1.0)
    assert not arm_checks.late_work(ARM, 3, allowed_s=0.08)
    assert host.now < 6.0
    assert arm_checks.settle(ARM)
    assert host.now < 12.0
