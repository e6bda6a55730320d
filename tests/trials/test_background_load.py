from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import ChildError
from bench.trials.selftest import background_load as module
from bench.trials.selftest.background_load import PATTERNS, load, segments

LOADED = (
    "import sys; from bench.trials.selftest.background_load import load\n"
    "with load('bursty', 3): sys.stdin.read()"
)

BUSY = sorted(set(PATTERNS) - {"quiet"})


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within a minute."""
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("pattern", BUSY)
def test_a_seed_gives_the_same_load_again(pattern: str) -> None:
    def first(seed):
        return [list(itertools.islice(segments(pattern, b, 2, seed), 500)) for b in range(2)]

    assert first(1) == first(1)
    assert all(segment.seconds > 0 and 0 <= segment.duty <= 1 for segment in first(1)[0])
    assert (first(1) == first(2)) == (pattern == "ramping")


def test_bursty_burners_burst_by_themselves() -> None:
    one, other = (list(itertools.islice(segments("bursty", b, 2, 0), 10_000)) for b in range(2))
    assert one != other
    bursts = [segment.seconds for segment in one if segment.duty]
    assert 0.02 <= min(bursts) < 0.03
    assert 0.29 < max(bursts) <= 0.3
    assert {segment.duty for segment in one} == {0, 1}
    assert sum(bursts) / sum(segment.seconds for segment in one) == pytest.approx(0.4, abs=0.01)


def test_ramping_rises_and_falls_at_once() -> None:
    rises = []
    whole = 0.0
    for segment in segments("ramping", 1, 2, 0):
        if segment.duty == 0:
            rises.append((whole, []))
            if len(rises) == 3:
                break
        rises[-1][1].append(segment.duty)
        whole += segment.seconds
    assert [start for start, _ in rises] == pytest.approx([0, 20, 40])
    one, other, _ = (duties for _, duties in rises)
    assert one == other == sorted(one)
    assert one[-1] == pytest.approx(0.9)
    assert one[len(one) // 2] == pytest.approx(0.45, abs=0.01)


def test_stepping_keeps_a_number_of_cores_busy() -> None:
    burners = 3
    streams = zip(*(segments("stepping", b, burners, 0) for b in range(burners)), strict=True)
    levels = []
    for together in itertools.islice(streams, 100):
        (seconds,) = {segment.seconds for segment in together}
        assert 2 <= seconds <= 6
        busy = [segment.duty for segment in together]
        assert busy == sorted(busy, reverse=True)
        levels.append(sum(busy))
    assert set(levels) == {0, 1, 2, 3}
    assert all(one != next_one for one, next_one in itertools.pairwise(levels))


def test_quiet_starts_nothing() -> None:
    with load("quiet") as pids:
        assert pids == ()


@pytest.mark.parametrize("pattern", BUSY)
def test_burners_are_there_and_then_gone(pattern: str, two_cores: None) -> None:
    with load(pattern) as pids:
        assert len(set(pids)) == 2
        assert not any(gone(pid) for pid in pids)
        assert all(psutil.Process(pid).nice() == psutil.Process().nice() for pid in pids)
        assert all(os.sched_getaffinity(pid) == os.sched_getaffinity(0) for pid in pids)
    assert all(gone(pid) for pid in pids)


def test_an_interruption_leaves_no_burner(two_cores: None) -> None:
    seen = []

    def interrupted() -> None:
        with load("bursty") as pids:
            seen.extend(pids)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(seen) == 2
    assert all(gone(pid) for pid in seen)


def test_burners_burn(two_cores: None) -> None:
    with load("bursty") as pids:
        burners = [psutil.Process(pid) for pid in pids]
        before = [burner.cpu_times().user for burner in burners]
        for burner, used in zip(burners, before, strict=True):
            assert soon(lambda b=burner, u=used: b.cpu_times().user > u + 0.1)


def test_a_burner_that_does_not_start_is_an_error(
    two_cores: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildError, match="the bursty load did not start"), load("bursty"):
        pass


@pytest.mark.parametrize("end", ["closed", "killed", "terminated"])
def test_no_burner_outlives_whoever_started_it(end: str) -> None:
    with subprocess.Popen(
        (sys.executable, "-c", LOADED), stdin=subprocess.PIPE, env=child_environment()
    ) as process:
        starter = psutil.Process(process.pid)
        assert soon(lambda: len(starter.children()) == module.usable_cores())
        burners = [child.pid for child in starter.children()]
        how = {
            "closed": process.stdin.close,
            "killed": process.kill,
            "terminated": process.terminate,
        }
        how[end]()
        process.wait(timeout=60)
    assert soon(lambda: all(gone(pid) for pid in burners))
    assert end != "closed" or process.returncode == 0
