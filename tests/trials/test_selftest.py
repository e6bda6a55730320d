"""The self-test's figures recover what was planted in its rows, and its session is a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.records import derived_files, files, trial_results
from bench.records.paths import ROOT
from bench.records.store import StoreError
from bench.trials.selftest import selftest_settings as stored_as
from bench.trials.selftest.equal_arms import SCALED, WORKING
from bench.trials.selftest.selftest_results import LOCKSTEP, Figures, build, compute
from bench.trials.selftest.selftest_settings import BASE, STEPPING, STEPS, Row
from bench.trials.selftest.shares import Rate, Shares, shares

HOSTILE = "</td><script>alert(1)</script> | `x`"


SECONDS = 0.5


def peer(
    number: int,
    slowdown: str,
    *,
    slower: bool | None,
    program: str = STEPS[0].name,
    error: str = "",
) -> Row:
    return {
        "kind": "peer", "pattern": "quiet", "peer": "other", "program": program,
        "slowdown": slowdown, "number": number, "error": error, "slower": slower,
        "measured_s": 0.09, "seconds": SECONDS,
    }  # fmt: skip


OWN: Row = {
    "kind": "own", "pattern": "quiet", "wall_s": 2.5, "inside_s": 2.4,
}  # fmt: skip
OVERHEAD: Row = {
    "kind": "overhead", "pattern": "quiet", "call_ns": 40.0, "throughput_ns": 90.0,
    "untimed_ns": 700.0,
}  # fmt: skip
REPORT: Row = {
    "kind": "report", "cells": 10240, "seconds": 7.0, "bytes": 30_000_000, "first_paint_s": 0.5,
    "usual_paint_s": 0.3, "usual_drawn_s": 2.5,
}  # fmt: skip

ROWS: list[Row] = [
    OWN,
    OVERHEAD,
    REPORT,
    *(peer(n, BASE, slower=True if n < 3 else None) for n in range(10)),
    *(peer(n, "5 % slower", slower=None if n < 4 else n != 9) for n in range(10)),
    peer(10, BASE, slower=None, error="it fell over"),
    # Of an earlier self-test.
    *(peer(n, "5 % slower", slower=True, program="spin") for n in range(2)),
]


def measured(truth: float = 1.0, seed: int = 0) -> pd.DataFrame:
    """Samples of a self-test; `truth` is the base's time, which its copies do not have."""
    chance = np.random.default_rng(seed)
    parts = []
    arms, span, rounds = STEPPING, 2e6, 130
    for load in ("quiet", "bursty"):
        factors = np.array([truth if arm == BASE else own for arm, own in arms.items()])
        times = span * factors * np.exp(0.01 * chance.standard_normal((rounds, len(arms))))
        parts.append(
            pd.DataFrame(
                {
                    "block": STEPS[0].name, "attempt": f"{load}/0", "load": load,
                    "round": np.repeat(np.arange(rounds), len(arms)),
                    "arm": list(arms) * rounds, "at": 0.0, "steps": 1,
                    "truth": list(arms.values()) * rounds, "latency_steps": 1,
                    "wash_out_ns": span, "throughput_ns": times.ravel(), "latency_ns": span,
                }
            )
        )  # fmt: skip
    parts.append(parts[0].assign(block="spin"))  # of an earlier self-test
    return pd.concat(parts, ignore_index=True)[stored_as.COLUMNS]


@pytest.fixture(scope="module")
def figures() -> Figures:
    with pytest.MonkeyPatch.context() as fewer:
        fewer.setattr("bench.trials.selftest.selftest_results.SECONDS", ())
        fewer.setattr("bench.trials.selftest.equal_arms.ROUNDS", (32, 128))
        return compute(ROWS, measured(), SECONDS, count=20)


def test_rates_have_wilsons_interval() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), 857: 81 of 263, and 0 of 20.
    assert Rate(81, 263).interval == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert Rate(0, 20).interval == pytest.approx((0.0, 0.1611), abs=1e-4)
    assert np.isnan(Rate(0, 0).value)


def test_trials_that_share_a_process_say_less_than_independent_ones() -> None:
    def holds(processes: list[str]) -> Rate:
        trials = pd.DataFrame(
            {
                "tool": LOCKSTEP, "trial": range(200), "processes": [[one] for one in processes],
                "truth": 1.0, "word": "same", "holds": [True] * 160 + [False] * 40,
                "width": 0.1, "verdict_width": 0.2, "used_s": 1.0,
            }
        )  # fmt: skip
        (found,) = shares(trials, ["tool"])
        assert found.alarms.interval == Rate(0, 200).interval, "nothing to learn from no events"
        return found.holds

    alone, together = holds([f"{n}" for n in range(200)]), holds([f"{n // 20}" for n in range(200)])
    assert alone == together == Rate(160, 200)
    assert alone.interval == pytest.approx(Rate(160, 200).interval, abs=0.01)
    # Ten processes, two of them without any that holds: 0.8 - 2.262 sqrt(0.8 0.2 / 9).
    assert together.interval == pytest.approx((0.4984, 1.0), abs=1e-4)


def with_keys(found: list[Shares], **keys: object) -> Shares:
    (one,) = [each for each in found if keys.items() <= each.keys.items()]
    return one


def test_figures_recover_what_was_planted(figures: Figures) -> None:
    size = "0.5 s per pair"
    for arms, slowed in ((2, SCALED), (7, SCALED), (14, SCALED), (2, WORKING)):
        ours = with_keys(figures.steps, tool=LOCKSTEP, arms=arms, slowed=slowed, size=size)
        assert ours.alarms.of == ours.wrong.of == 20
        assert ours.alarms.count <= 1
        assert ours.wrong.count == 0
        assert ours.found["10 % slower"].value == 1
    assert {each.keys["load"] for each in figures.places} == {"quiet", "bursty"}
    assert {(each.keys["arms"], each.keys["size"]) for each in figures.intervals} == {
        (arms, f"{rounds} rounds") for arms in (2, 7, 14) for rounds in (32, 128)
    }
    said = {target.measured for target in figures.targets}
    assert {"96.0 %", "50 ns", "700 ns"} <= said
    met = {target.promise: target.met for target in figures.targets}
    assert met["No program that is slower by more than the margin is called faster or the same"]
    assert met["At least 85 % of the measuring time is spent in steps"]
    assert not met["The report of 10,000 cells is rebuilt within 10 s and takes at most 20 MB"]
    assert met["A browser shows the report of 10,000 cells within 2 s"]
    assert not met["A browser shows the report of 400 cells within 0.5 s, all within 2 s"]


def test_a_detector_that_is_wrong_misses_its_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that are called identical and are not: every alarm is counted."""
    monkeypatch.setattr("bench.trials.selftest.selftest_results.SECONDS", ())
    monkeypatch.setattr("bench.trials.selftest.equal_arms.ROUNDS", ())
    monkeypatch.setattr("bench.trials.selftest.equal_arms.ARMS", (14,))
    found = compute([], measured(truth=1.1), SECONDS, count=20)
    (alarms,) = [target for target in found.targets if "called different" in target.promise]
    assert not alarms.met
    assert int(alarms.measured.split()[0]) >= 20, "all blocks of fourteen arms"
    (holds,) = [target for target in found.targets if "holds 1" in target.promise]
    assert not holds.met


def test_peers_are_counted_by_their_own_rule(figures: Figures) -> None:
    other = with_keys(figures.steps, tool="other", size="0.5 s per pair")
    assert other.alarms == Rate(3, 10)
    assert other.found == {"5 % slower": Rate(5, 10)}
    assert other.wrong == Rate(1, 10)
    assert other.used_s == pytest.approx(0.09)
    assert figures.errors == {"other": 1}


@pytest.mark.slow
def test_pages_are_made_of_stored_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.trials.selftest.selftest_results.SECONDS", ())
    monkeypatch.setattr("bench.trials.selftest.equal_arms.ROUNDS", (16,))
    monkeypatch.setattr("bench.trials.selftest.equal_arms.ARMS", (7,))
    folder = tmp_path / "selftest"
    folder.mkdir()
    manifest = {
        "started_at": "2026-11-21T14:10:05+00:00",
        "settings": {"processes": 4, "seconds": SECONDS},
        "unavailable": {"absent": HOSTILE},
        "host": {"cpu": HOSTILE, "usable_cores": 2},
        "git": {"commit": "0123abc", "dirty": False},
    }
    (folder / stored_as.TRIALS).write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    measured().to_parquet(folder / stored_as.SAMPLES)
    sums = derived_files.checksums(folder, (stored_as.TRIALS, stored_as.SAMPLES))
    files.write_sealed(folder / trial_results.SELFTEST_MANIFEST, {**manifest, "checksums": sums})
    page, found = build(folder)
    before = page.read_bytes(), (folder / "report.md").read_bytes()
    build(folder)
    assert (page.read_bytes(), (folder / "report.md").read_bytes()) == before
    assert "<script>alert" not in page.read_text()
    markdown = (folder / "report.md").read_text()
    assert "<script>" not in markdown
    assert "30.0 % (10.8 to 60.3 %)" in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(tables) > 15
    blocks = markdown.split("\n\n")
    for block in blocks:
        widths = {line.replace("\\|", "").count("|") for line in block.splitlines() if "|" in line}
        assert len(widths) <= 1, block
    stored = json.loads((folder / "figures.json").read_text())
    assert len(stored["steps"]) == len(found.steps)
    for file in (
        stored_as.SAMPLES,
        stored_as.TRIALS,
        trial_results.SELFTEST_MANIFEST,
    ):
        path = folder / file
        text = path.read_bytes()
        path.write_bytes(text[:-1])
        with pytest.raises(StoreError, match=file):
            build(folder)
        path.write_bytes(text)


@pytest.mark.slow
def test_a_whole_session(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "bench", "selftest", "--run", "r"),
            *("--processes", "1", "--seconds", "0.5", "--peer-trials", "0"),
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
    folder = tmp_path / "reports" / "r"
    manifest, stored = stored_as.read(folder)
    samples = pd.read_parquet(folder / stored_as.SAMPLES)
    assert manifest["settings"]["patterns"] == ["stepping"]
    for row in (row for row in stored if row["kind"] == "own"):
        assert 0 < row["inside_s"] < row["wall_s"]
    assert set(samples["load"]) == {"stepping"}
    arms = samples.groupby("block")["arm"].unique().map(set)
    assert arms.to_dict() == {STEPS[0].name: set(STEPPING)}
    assert samples.groupby("block")["round"].nunique().min() >= 16
    assert sum(row["kind"] == "overhead" for row in stored) == 1
    assert [row["cells"] for row in stored if row["kind"] == "report"] == [320]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--load", "windy"), "unknown 'windy'"),
        (("--peer", "stopwatch"), "unknown 'stopwatch'"),
        (("--again", "nowhere"), "nowhere is not a self-test"),
        (("--again", "mine", "--peer-trials", "3"), "--again, --peer-trials: --again and"),
        (("--samples", "mine", "--again", "mine"), "take no other option"),
        (("--run", "a/b"), "'a/b' is not a folder's name"),
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
