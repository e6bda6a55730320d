"""The table of faults, and how an outcome is judged. The faults themselves: `nox -s faults`."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import re
import runpy
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import typer

from bench.commands import faults
from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Answer
from bench.plan.option_values import BadInput
from bench.records import trial_results
from bench.trials.faults import fault_session, fault_table, right_launches, run_scenarios
from bench.trials.faults.fault_table import FAULTS, Fault
from bench.trials.faults.observed_run import Ended, Lab, LabError, Outcome, UnavailableError


def fault(trial, name: str = "planted") -> Fault:
    return Fault(name, "crash", "by hand", trial)


def raising(error: Exception):
    def trial(lab: Lab, outcome: Outcome) -> None:
        raise error

    return trial


def observing(**fields):
    """A trial with this outcome."""
    return lambda lab, outcome: vars(outcome).update(fields)


def test_faults_have_names_of_their_own() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert all(name.replace("-", "").isalnum() for name in names)


WORDS = re.compile(r"[\w'.]+|\0")
"""Words of a text, and a null character where a value or another text may follow."""


def adjacent_words(text: str) -> set[tuple[str, str]]:
    words = ["\0", *WORDS.findall(text), "\0"]
    return set(pairwise(words))


def spoken_by_the_harness() -> set[tuple[str, str]]:
    """Adjacent words of all texts of bench, except those of the trials."""
    found = set()
    bench = Path(run_scenarios.__file__).parents[2]
    for path in bench.rglob("*.py"):
        own = "trials" in path.relative_to(bench).parts
        for node in () if own else ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
                ]
                found |= adjacent_words("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= adjacent_words(node.value)
    return found


def unspoken(pattern: str, spoken: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Adjacent words of a pattern, except names and numbers, that no message can contain."""
    plain = re.sub(r"\\[()]", "\0", pattern).replace(r"\.", ".")
    texts = [text.strip("\0") for text in re.split(r"\.\*|\\d\+|[()|]", plain)]
    pairs = {pair for text in texts for pair in adjacent_words(text)}
    return {
        (one, next_one)
        for one, next_one in pairs
        if one.islower() and next_one.islower()
        if not {(one, next_one), (one, "\0"), ("\0", next_one)} & spoken
    }


def test_expected_reasons_are_worded_as_the_messages_are() -> None:
    spoken = spoken_by_the_harness()
    assert unspoken("the harness sleeps|a loss", spoken) == {("harness", "sleeps")}
    for fault in FAULTS:
        pattern = inspect.getclosurevars(fault.trial).nonlocals.get("reason", "")
        assert not unspoken(pattern, spoken), fault.name


def test_every_planted_file_is_used() -> None:
    from bench.trials.faults import planted  # noqa: PLC0415 (imports jax)

    sources = [Path(str(module.__file__)) for module in (fault_table, run_scenarios)]
    words = {
        node.value
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    workloads = {name for name in vars(planted) if name.endswith("_workload")}
    assert len(workloads) == 2
    assert {*planted.CHANGES, *workloads} <= words
    planted_by = {f"{action}_{at}": action for action in planted.ACTIONS for at in planted.MOMENTS}
    assert {planted_by[word] for word in words if word in planted_by} == {*planted.ACTIONS}


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("wait_in_build", {"build", "why_unsupported"}),
        ("nan_workload", {"problem", "SIZES", "DEFAULT_SIZE"}),
    ],
)
def test_a_planted_file_defines_what_a_run_needs(
    tmp_path: Path, name: str, needed: set[str]
) -> None:
    assert needed <= set(runpy.run_path(Lab(tmp_path).write_planted(name)))


def test_what_is_not_as_it_must_be_is_a_deviation() -> None:
    outcome = Outcome()
    assert outcome.check_end(Ended(1, "this is\nsaid so\n", []), 1, "said .*") == "said so"
    outcome.check_cell(
        {"status": "crashed", "reason": "killed by SIGSEGV during gate"}, "crashed", "SIGSEGV"
    )
    assert not outcome.deviations
    assert outcome.cell == "crashed: killed by SIGSEGV during gate"
    outcome.check_end(Ended(0, "said this", ["sleep 300"]), 1, "said so")
    outcome.check_cell({"status": "oom", "reason": "killed"}, "crashed", "SIGSEGV")
    outcome.check_cell(None, "crashed", "")
    noted = " ".join(outcome.deviations)
    for words in (
        *("exit code 0, not 1", "said this", "sleep 300", "oom, not crashed", "no row"),
        "does not match 'said so'",
    ):
        assert words in noted


def test_files_that_are_not_whole_are_found(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.run.mkdir(parents=True)
    whole = {
        "manifest.json": "{}",
        "cells.jsonl": "{}\n",
        "cells.csv": "a,b\n1,2\n",
        "report.html": "<html>python_loop</html>\n",
        "report.md": "python_loop",
    }
    for name, text in whole.items():
        (lab.run / name).write_text(text)
    assert lab.half_written() == []
    assert lab.report("python_loop") == ""
    assert lab.report("other") == "report.html does not mention other"
    for name, text in {
        "cells.jsonl": "{}\n{",
        "manifest.json": "{",
        "report.html": "<html>pyth",
        "report.md.1.part": "",
        "samples.parquet": "PAR1",
    }.items():
        (lab.run / name).write_text(text)
    assert lab.half_written() == [
        *("cells.jsonl", "manifest.json", "report.html", "report.md.1.part", "samples.parquet")
    ]
    (lab.run / "report.md").unlink()
    assert lab.report().startswith("report.md cannot be read")


@pytest.mark.parametrize(
    ("trial", "verdict", "skipped"),
    [
        (observing(), "passed", ""),
        (observing(deviations=["lost"]), "FAILED", ""),
        (raising(LabError("the run ended before")), "FAILED", ""),
        (raising(UnavailableError("no namespaces here")), "skipped", "no namespaces here"),
    ],
)
def test_one_fault(trial, verdict: str, skipped: str) -> None:
    outcome = fault_session.inject(fault(trial), threading.Event())
    assert (fault_session.verdict(vars(outcome)), outcome.skipped) == (verdict, skipped)


@pytest.mark.parametrize(
    ("trial", "code", "words"),
    [
        (observing(cell="crashed: x|y", code=1), 0, "crashed: x\\|y"),
        (raising(UnavailableError("no namespaces here")), 0, "no namespaces here"),
        (observing(deviations=["its cell has no row"]), 1, "its cell has no row"),
    ],
)
def test_the_table_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    trial,
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fault_table, "FAULTS", (fault(trial, "mine"),))
    with pytest.raises(typer.Exit) as ended:
        faults.faults(["mine"], list_=False, jobs=1, run="r", right=0, limit=None)
    assert ended.value.exit_code == code
    assert words in (tmp_path / "reports/r" / trial_results.FAULTS_MARKDOWN).read_text()
    html = (tmp_path / "reports/r" / trial_results.FAULTS_PAGE).read_text()
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", html)
    assert words.replace("\\", "") in html
    assert html.rstrip().endswith("</html>")
    shown = capsys.readouterr().out
    assert "mine" in shown
    assert "1 fault: " in shown
    (row,) = json.loads((tmp_path / "reports/r" / trial_results.FAULTS).read_text())["rows"]
    assert row["name"] == "mine"
    assert row["passed"] == (code == 0 and not row["outcome"]["skipped"])


def test_unknown_faults_are_refused() -> None:
    with pytest.raises(BadInput, match=r"fault: unknown .* did you mean sigkill-in-build"):
        faults.faults(["sigkil-in-build"], list_=False, jobs=1, run="", right=0, limit=None)


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        ([], 0, ("launches with a false conviction: 0 of 4: 0.0 % (0.0 to 49.0 %)",)),
        ([("a/x", "timeout", "silent")], 0, ("a/x is timeout: silent", "otherwise: 2")),
        (
            [("a/x", "wrong", "why"), ("a/y", "implausible", ""), ("b/x", "oom", "")],
            1,
            ("launches with a false conviction: 2 of 4", "convicted: 4 of 20", "otherwise: 2"),
        ),
    ],
)
def test_false_convictions_of_right_steps_are_counted(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ended: list[tuple[str, str, str]],
    code: int,
    words: tuple[str, ...],
) -> None:
    one = {"load": "bursty", "options": ["--x"], "launches": 2, "arms": 10, "ended": ended}
    one["convicting"] = code
    monkeypatch.setattr(right_launches, "run", lambda *_: iter([one, one]))
    with pytest.raises(typer.Exit) as stopped:
        faults.faults([], list_=False, jobs=1, run="r", right=4, limit=1.0)
    assert stopped.value.exit_code == code
    said = capsys.readouterr().out
    assert "bursty --x: 2 launches, 10 arms" in said
    assert not [word for word in words if word not in said]


def test_launches_under_load_end_and_keep_only_runs_with_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [
        {"block": "a", "implementation": "x", "status": "ok", "reason": "", "attempt": "1"},
        {"block": "a", "implementation": "y", "status": "unsupported", "reason": ""},
    ]
    wrong = {**rows[0], "block": "b", "status": "wrong", "reason": "why"}
    asked = []

    def measure(words: list[str], *_: object, cwd: Path) -> Answer:
        (cwd / "reports" / words[-1]).mkdir(parents=True)
        asked.append(words)
        return Answer("", [], 0)

    def stored(folder: Path) -> SimpleNamespace:
        more = [wrong] if folder.name == "1" else []
        return SimpleNamespace(cell_rows=[*rows, *more], block_rows=[{}, {}])

    monkeypatch.setattr(right_launches, "ask", measure)
    monkeypatch.setattr(right_launches, "load", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(right_launches.store, "load", stored)
    runs = list(right_launches.run(5, 600.0, tmp_path / "r"))
    assert [(one["launches"], one["arms"], one["ended"]) for one in runs] == [
        (2, 1, []), (2, 2, [("b/x", "wrong", "why")]), (2, 1, []),
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "r/reports").iterdir()] == ["1"]
    stored_lines = (tmp_path / "r" / right_launches.FILE).read_text().splitlines()
    assert [json.loads(line)["load"] for line in stored_lines] == [one["load"] for one in runs]
    assert len({one["load"] for one in runs}) == 3
    assert list(right_launches.run(5, -1.0, tmp_path / "none")) == []


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="processes are found by /proc")
def test_launches_under_load_end_with_the_command(tmp_path: Path) -> None:
    def runs() -> list[int]:
        there = str(tmp_path / "reports" / "r")
        return [one.pid for one in psutil.process_iter(["cwd"]) if one.info["cwd"] == there]

    words = [sys.executable, "-m", "bench", "faults", "--right", "1", "--run", "r"]
    with subprocess.Popen(words, cwd=tmp_path, env=child_environment()) as command:
        until = time.monotonic() + 60
        while len(runs()) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(runs()) >= 2, "the run and its guard"
        command.terminate()
        while runs() and time.monotonic() < until:
            time.sleep(0.02)
        assert not runs()
