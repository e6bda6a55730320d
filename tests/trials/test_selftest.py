"""The self-test's figures recover what was planted in its rows, and its session is a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.records import trial_results
from bench.records.arms import TWIN
from bench.records.paths import ROOT
from bench.trials.selftest import trial_rows, trial_verdicts
from bench.trials.selftest.detector_figures import Rate, compute
from bench.trials.selftest.planted_kernel import why_unavailable
from bench.trials.selftest.selftest_page import build
from bench.trials.selftest.selftest_settings import LAUNCHES
from bench.trials.selftest.trial_rows import (
    ROUNDS,
    SLOWDOWNS,
    OverheadRow,
    OwnRow,
    PeerRow,
    ReportRow,
    Row,
)
from bench.trials.selftest.trial_verdicts import ALL, LOCKSTEP, replay

HOSTILE = "</td><script>alert(1)</script> | `x`"


def own(pattern: str, process: int, number: int, *, noise: float, truth: float = 1.0) -> OwnRow:
    """A trial whose twin's true ratio is `truth`, and whose other arms are what they say."""
    rng = np.random.default_rng([len(pattern), process, number])
    planted = SLOWDOWNS | {TWIN: truth}
    return {
        "kind": "own", "pattern": pattern, "process": process, "number": number, "steps": 5,
        "wall_s": 2.5, "inside_s": 2.4,
        "log_ratios": {
            arm: list(np.log(ratio) + noise * rng.standard_normal(ROUNDS))
            for arm, ratio in planted.items()
        },
    }  # fmt: skip


def peer(number: int, slowdown: str, *, slower: bool | None, error: str = "") -> PeerRow:
    return {
        "kind": "peer", "pattern": "quiet", "peer": "other", "slowdown": slowdown,
        "number": number, "error": error, "different": slower is not None, "slower": slower,
        "ratio": 1.0, "measured_s": 0.9, "wall_s": 2.0,
    }  # fmt: skip


OVERHEAD: OverheadRow = {
    "kind": "overhead", "pattern": "quiet", "process": 0, "call_ns": 40.0, "throughput_ns": 90.0,
    "latency_ns": 400.0, "untimed_ns": 700.0,
}  # fmt: skip


def rows(noise: float, truth: float = 1.0) -> list[Row]:
    trials = [
        own(pattern, process, number, noise=noise, truth=truth)
        for pattern in ("quiet", "bursty")
        for process in range(LAUNCHES)
        for number in range(12)
    ]
    others = [peer(n, TWIN, slower=True if n < 3 else None) for n in range(10)]
    others += [peer(n, "5 % slower", slower=None if n < 4 else n != 9) for n in range(10)]
    report: ReportRow = {
        "kind": "report", "cells": 10240, "seconds": 7.0, "bytes": 30_000_000, "first_paint_s": 0.5,
    }  # fmt: skip
    return [*trials, OVERHEAD, report, *others, peer(10, TWIN, slower=None, error="it fell over")]


def test_rates_have_wilsons_interval() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), 857: 81 of 263, and 0 of 20.
    assert Rate(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert Rate(0, 20).interval == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert np.isnan(Rate(0, 0).value)


def test_a_quiet_detector_meets_its_targets() -> None:
    found = compute(rows(noise=0.01), seconds=1.0)
    ours = {d.seconds: d for d in found.detectors if d.tool == LOCKSTEP and d.pattern == ALL}
    assert set(ours) == {1.0, 1.0 * LAUNCHES}
    assert ours[1.0].alarms == Rate(0, 96)
    assert ours[4.0].alarms == Rate(0, 24)
    assert ours[4.0].found == {arm: Rate(24, 24) for arm in SLOWDOWNS if arm != TWIN}
    assert ours[1.0].wrong == 0
    # Large differences are seen at the first look.
    assert 16 / ROUNDS <= ours[1.0].used_s < 1
    assert found.cost is not None
    assert found.cost.inside == pytest.approx(0.96)
    assert (found.cost.recorded_ns, found.cost.untimed_ns) == (50, 700)
    met = {target.promise: target.met for target in found.targets}
    assert met["No slower program is called faster, or the same despite exceeding the margin"]
    assert met["A program that is 5 % slower is detected in at least 95 % of trials of 1 s"]
    assert met["A program that is 2 % slower is detected in at least 90 % of trials of 4 s"]
    assert met["At least 85 % of the measuring time is spent in steps"]
    assert not met["The report of 10,000 cells is rebuilt within 10 s and takes at most 20 MB"]
    assert met["A browser shows the report of 10,000 cells within 2 s"]


def test_a_detector_that_is_wrong_misses_them() -> None:
    """Programs that are called identical and are not: every alarm is counted."""
    found = compute(rows(noise=0.005, truth=1.05), seconds=1.0)
    alarms = [target for target in found.targets if target.promise.startswith("Identical")]
    assert len(alarms) == 1
    assert not any(target.met for target in alarms)
    covers = [target for target in found.targets if "holds the true ratio" in target.promise]
    assert not any(target.met for target in covers)
    assert all(target.measured.startswith("0 of ") for target in covers)


def test_too_few_trials_prove_nothing() -> None:
    few = [row for row in rows(noise=0.01) if row["kind"] != "own" or row["number"] == 0]
    alarms = [t for t in compute(few, 1.0).targets if t.promise.startswith("Identical")]
    assert not any(target.met for target in alarms), "the upper bound is above 2 %"


def test_peers_are_counted_by_their_own_rule() -> None:
    found = compute(rows(noise=0.01), seconds=1.0)
    (other,) = [d for d in found.detectors if d.tool == "other" and d.pattern == ALL]
    assert other.alarms == Rate(3, 10)
    assert other.found == {"5 % slower": Rate(5, 10)}
    assert other.wrong == 1
    assert other.used_s == pytest.approx(0.9)
    assert found.errors == {"other": 1}


def test_a_trial_stops_where_the_engine_would() -> None:
    rng = np.random.default_rng(0)
    large = replay([0.5 + 0.01 * rng.standard_normal(ROUNDS) for _ in range(LAUNCHES)])
    assert (large.word, large.rounds) == ("slower", 16 * LAUNCHES)
    assert large.whole.rounds == ROUNDS * LAUNCHES
    hopeless = replay([0.5 * rng.standard_normal(ROUNDS)])
    assert (hopeless.word, hopeless.rounds) == ("undecided", ROUNDS)
    assert trial_verdicts.trials([own("p", 0, 0, noise=0.1)], LAUNCHES)[TWIN] == [], (
        "too few processes"
    )


def test_pages_are_made_of_stored_rows(tmp_path: Path) -> None:
    folder = tmp_path / "selftest"
    folder.mkdir()
    manifest = {
        "started_at": "2026-11-21T14:10:05+00:00",
        "settings": {"processes": 4, "trials": 12, "seconds": 1.0},
        "iterations": 1000,
        "unavailable": {"absent": HOSTILE},
        "host": {"cpu": HOSTILE, "usable_cores": 2},
        "git": {"commit": "0123abc", "dirty": False},
    }
    text = "".join(f"{json.dumps(row)}\n" for row in rows(noise=0.01))
    (folder / trial_rows.TRIALS).write_text(text)
    trial_rows.close(folder, manifest)
    page, found = build(folder)
    before = page.read_bytes(), (folder / "report.md").read_bytes()
    build(folder)
    assert (page.read_bytes(), (folder / "report.md").read_bytes()) == before
    assert "<script>alert" not in page.read_text()
    markdown = (folder / "report.md").read_text()
    assert "<script>" not in markdown
    assert "30.0 % (10.8 to 60.3)" in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(tables) > 20
    blocks = markdown.split("\n\n")
    for block in blocks:
        widths = {line.replace("\\|", "").count("|") for line in block.splitlines() if "|" in line}
        assert len(widths) <= 1, block
    stored = json.loads((folder / "figures.json").read_text())
    assert len(stored["detectors"]) == len(found.detectors)
    assert (folder / "detectors.svg").exists()
    for file in (trial_rows.TRIALS, trial_results.SELFTEST_MANIFEST):
        path = folder / file
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(trial_rows.DamagedError, match=file):
            build(folder)


@pytest.mark.slow
@pytest.mark.skipif(why_unavailable() is not None, reason=str(why_unavailable()))
def test_a_whole_session(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "bench", "selftest", "--run", "r"),
            *("--processes", "1", "--trials", "1", "--seconds", "0.1", "--peer-trials", "0"),
            *("--load", "stepping", "--report-cells", "1"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "self-test: reports/r/report.html" in done.stdout
    manifest, stored = trial_rows.read(tmp_path / "reports" / "r")
    assert manifest["settings"]["patterns"] == ["stepping"]
    trials = [row for row in stored if row["kind"] == "own"]
    assert [(row["pattern"], row["number"]) for row in trials] == [("stepping", 0)]
    for row in trials:
        assert {arm: len(values) for arm, values in row["log_ratios"].items()} == dict.fromkeys(
            SLOWDOWNS, ROUNDS
        )
        assert 0 < row["inside_s"] < row["wall_s"]
    assert sum(row["kind"] == "overhead" for row in stored) == 1
    assert [row["cells"] for row in stored if row["kind"] == "report"] == [320]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--load", "windy"), "unknown 'windy'"),
        (("--peer", "stopwatch"), "unknown 'stopwatch'"),
        (("--again", "nowhere"), "nowhere is not a self-test"),
        (("--run", "a/b"), "'a/b' is not a plain name"),
        (("--processes", "6"), "6 is not a multiple of 4"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["selftest", *words])
    assert done.exit_code == 4
    assert message in done.stderr
    assert not (tmp_path / "reports").exists()
