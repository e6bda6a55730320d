"""A comparison of two runs finds what was planted, and calls nothing different that is not."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from pages import Elements
from rich.console import Console
from test_report import HOSTILE
from typer.testing import CliRunner

from bench.__main__ import app
from bench.analyse import run_changes
from bench.analyse.run_changes import RunComparison
from bench.commands.exits import BAD_INPUT
from bench.present import (
    bounds,
    comparison_report,
    rendering,
)
from bench.records import store

PLAN = synthetic.Plan(workloads=("linear-base", "mlp-base"), devices=(1, 2))
ELSEWHERE = replace(PLAN, seed=9, pace=1.08)
"""The same truth, measured in an hour in which everything takes 8 % longer."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    synthetic.write(folder, PLAN, "before")
    synthetic.write(folder, ELSEWHERE, "after")
    return folder


def compared(folder: Path, a: synthetic.Plan, b: synthetic.Plan) -> RunComparison:
    runs = (synthetic.write(folder, plan, name) for plan, name in ((a, "before"), (b, "after")))
    return run_changes.compare(*map(store.load, runs))


def against(found: RunComparison) -> dict[str, run_changes.Change]:
    return {change.cell: change for change in found.changes}


def printed(found: RunComparison, **options) -> str:
    text = io.StringIO()
    comparison_report.show(Console(file=text, width=80, highlight=False, **options), found)
    return text.getvalue()


def page(found: RunComparison, *, markdown: bool = False) -> str:
    return rendering.render("compare", markdown=markdown, **comparison_report.content(found))


def test_planted_changes_are_found_with_their_sign(tmp_path: Path) -> None:
    planted = {"nnx_jit": 1.15, "shard_map_psum": 0.9}
    ratios = {name: ratio * planted.get(name, 1) for name, ratio in synthetic.RATIOS.items()}
    found = compared(tmp_path, PLAN, replace(ELSEWHERE, ratios=ratios))
    assert len(found.changes) == 28
    for change in found.changes:
        if change.implementation == synthetic.BASELINE:
            continue
        truth = planted.get(change.implementation, 1)
        assert change.source == "baseline"
        assert change.against_baseline is not None
        assert change.against_baseline.value == pytest.approx(truth, rel=0.01)
        low, high = change.verdict.low, change.verdict.high
        assert low < truth < high
        words_ = {1.15: {"slower"}, 0.9: {"faster"}, 1: {"same", "undecided"}}[truth]
        assert change.verdict.word in words_, change.cell
    assert "28 cells: 4 faster" in comparison_report.tally(found)
    assert "4 slower" in comparison_report.tally(found)
    assert "\n\nB against A, 28 cells: 4 faster" in printed(found), "the answer stands alone"


def test_a_slower_hour_makes_nothing_different(reports: Path) -> None:
    found = run_changes.compare(*(store.load(reports / name) for name in ("before", "after")))
    assert {change.verdict.word for change in found.changes} <= {"same", "undecided"}
    left = [change.verdict for change in found.changes if not change.verdict.decided]
    most = max(max(one.high, 1 / one.low) for one in left)
    assert f" {len(left)} undecided ({bounds.within(most)})." in comparison_report.tally(found)
    for change in found.changes:
        assert not change.step.paired
        assert change.step.low is not None
        assert change.step.high is not None
        assert change.step.low < 1 < change.step.high
        assert change.step.low < 1.08 < change.step.high
        assert change.step.high / change.step.low > 1.4
        if change.against_baseline is not None:
            assert change.against_baseline.paired
            assert change.against_baseline.high is not None
            assert change.against_baseline.high < 1.03
    own = [c for c in found.changes if c.implementation == synthetic.BASELINE]
    assert {c.source for c in own} == {"step time"}
    assert {c.against_baseline for c in own} == {None}


@pytest.mark.parametrize("launches", [1, 4])
def test_identical_runs_are_never_called_different(launches: int, tmp_path: Path) -> None:
    plan = synthetic.Plan(workloads=("mlp-base",), devices=(2,), launches=launches, noise=0.02)
    for seed in range(8):
        pace = math.exp(0.045 * (seed % 5 - 2))
        folder = tmp_path / str(seed)
        found = compared(folder, plan, replace(plan, seed=seed + 1, pace=pace))
        assert {change.verdict.word for change in found.changes} <= {"same", "undecided"}


def test_verdicts_share_the_error_of_the_table(tmp_path: Path) -> None:
    found = compared(tmp_path, PLAN, ELSEWHERE)
    change = next(change for change in found.changes if change.source == "baseline")
    assert change.against_baseline is not None
    strict = change.against_baseline.interval(0.01 / len(found.changes))
    assert (change.verdict.low, change.verdict.high) == strict


def test_a_run_against_itself_does_not_differ(reports: Path) -> None:
    run = store.load(reports / "before")
    found = run_changes.compare(run, run)
    assert not found.differences
    assert {change.verdict.word for change in found.changes} <= {"same", "undecided"}
    assert {change.step.value for change in found.changes} == {1.0}


def test_the_command_is_the_one_that_is_installed(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_report, "REPORTS", reports)
    run = store.load(reports / "before")
    found = run_changes.compare(run, run)
    assert "python -m bench compare before before" in page(found)
    monkeypatch.setattr(comparison_report, "PROGRAM", "lockstep")
    assert "lockstep compare before before" in page(found)


def test_the_command_finds_runs_that_were_renamed_or_lie_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As artifacts of CI jobs do, all of which may have the same name in their manifests."""
    monkeypatch.setattr(comparison_report, "REPORTS", tmp_path / "reports")
    for place in ("reports/renamed", "artifact"):
        folder = synthetic.write(tmp_path / "stored", replace(PLAN, devices=(1,)), "gate")
        folder.rename((tmp_path / place).parent.mkdir(exist_ok=True) or tmp_path / place)
    a, b = (store.load(tmp_path / place) for place in ("reports/renamed", "artifact"))
    assert f"compare renamed {tmp_path}/artifact --margin" in page(run_changes.compare(a, b))


def test_the_margin_is_the_wider_one_unless_given(reports: Path, tmp_path: Path) -> None:
    runs = [store.load(reports / name) for name in ("before", "after")]
    runs[0].manifest["config"]["margin"] = 0.05
    found = run_changes.compare(*runs)
    assert found.margin == 0.05
    assert [d.name for d in found.differences] == ["Margin"]
    assert run_changes.compare(*runs, 0.001).margin == 0.001


def differ(manifest) -> None:
    manifest["platform"] = "gpu"
    manifest["host"] |= {"cpu": "Another processor", "memory_bytes": 16 << 30}
    manifest["versions"] |= {"jax": "0.12.0", "jaxlib": "0.12.0"}
    manifest["environment"] = {"XLA_FLAGS": "--xla_some=1"}
    manifest["git"] |= {"commit": "f" * 40, "dirty": True}
    manifest["config"] |= {"rounds": 32, "ablations": ["forward", "backward"], "profile_steps": 5}


def test_what_differs_is_said_first_with_both_values(tmp_path: Path) -> None:
    a, b = (synthetic.write(tmp_path, PLAN, name) for name in ("before", "after"))
    synthetic.rewrite(b, "manifest", differ)
    found = comparison_report.build(store.load(a), store.load(b), tmp_path / "out", None)
    expected = {
        ("machine", "Platform", "cpu", "gpu"),
        ("machine", "Processor", "An eight-core processor", "Another processor"),
        ("machine", "Host memory", "31.3 GiB", "16.0 GiB"),
        ("versions", "jax", "0.10.2", "0.12.0"),
        ("versions", "jaxlib", "unknown", "0.12.0"),
        ("environment", "NPROC", "1", "not set"),
        ("environment", "XLA_FLAGS", "not set", "--xla_some=1"),
        ("options", "Rounds", "not set", "32"),
        ("options", "Ablations", "not set", "forward, backward"),
        ("options", "Profile steps", "not set", "5"),
    }
    said = {
        (d.kind, d.name, *(v.replace("\N{NARROW NO-BREAK SPACE}", " ") for v in (d.a, d.b)))
        for d in found.differences
    }
    assert expected < said
    (code,) = [d for d in found.differences if d.kind == "code"]
    assert code.b == f"{'f' * 40} with uncommitted changes"
    sentence = "These differ: platform, processor, host memory, "
    lines = printed(found).splitlines()
    assert lines[2].startswith(sentence)
    assert "  jax: 0.10.2 -> 0.12.0" in lines
    text = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    lead = text.index('<p class="lead">')
    assert text[lead:].startswith(f'<p class="lead">{sentence}')
    markdown = (tmp_path / "out" / "compare.md").read_text(encoding="utf-8")
    assert markdown.splitlines()[2].startswith(sentence)
    assert "| jax (versions) | 0.10.2 | 0.12.0 |" in markdown
    titles = list(comparison_report.caveats(found))
    assert titles == [
        "More than the code differs",
        "Uncommitted changes",
        "Cannot detect a change of the baseline",
    ]


def test_alike_machines_are_said_to_be_alike(reports: Path) -> None:
    run = store.load(reports / "before")
    other = store.load(reports / "after")
    # Too little to be shown.
    other.manifest["host"]["memory_bytes"] += 4096
    assert run_changes.differences(run.manifest, other.manifest) == []
    found = run_changes.compare(run, other)
    assert comparison_report.setting(found) == comparison_report.ALIKE
    shown = " ".join(printed(found).split())
    assert "The two runs were not measured side by side." in shown
    assert "identical programs that ran one after the other differed by 4.5" in shown


def test_cells_in_one_run_only_are_listed(tmp_path: Path) -> None:
    a = replace(PLAN, ratios={"jit_spmd": 1.0, "old": 1.1}, workloads=("mlp-base",))
    b = replace(
        PLAN,
        ratios={"jit_spmd": 1.0, "new": 1.1},
        devices=(2, 4),
        endings={("new", 4): ("oom", "no room")},
    )
    found = compared(tmp_path, a, b)
    assert [change.cell for change in found.changes] == ["mlp-base/data=2/b64/fp32/jit_spmd"]
    listed = [(row["cell"], row["A"], row["B"]) for row in comparison_report.uncompared(found).rows]
    oom = "out of memory: no room"
    assert listed == [
        ("mlp-base/data=1/b64/fp32/jit_spmd", "ok", None),
        ("mlp-base/data=1/b64/fp32/old", "ok", None),
        ("mlp-base/data=2/b64/fp32/old", "ok", None),
        ("linear-base/data=2/b64/fp32/jit_spmd", None, "ok"),
        ("linear-base/data=2/b64/fp32/new", None, "ok"),
        ("linear-base/data=4/b64/fp32/jit_spmd", None, "ok"),
        ("linear-base/data=4/b64/fp32/new", None, oom),
        ("mlp-base/data=2/b64/fp32/new", None, "ok"),
        ("mlp-base/data=4/b64/fp32/jit_spmd", None, "ok"),
        ("mlp-base/data=4/b64/fp32/new", None, oom),
    ]
    assert "3 only in A and 7 only in B." in comparison_report.tally(found)


def test_cells_that_ended_differently_are_listed_with_reasons(tmp_path: Path) -> None:
    a = replace(PLAN, endings={("pmap", 0): ("unsupported", "jax.pmap is not there")})
    b = replace(
        PLAN,
        endings={**a.endings, ("nnx_jit", 2): ("wrong", "gradients 2 times too large")},
    )
    found = compared(tmp_path, a, b)
    one, other = comparison_report.uncompared(found).rows
    assert one["cell"] == "linear-base/data=2/b64/fp32/nnx_jit"
    assert (other["A"], other["B"]) == ("ok", "wrong: gradients 2 times too large")
    assert comparison_report.tally(found).endswith("2 cells ended differently.")
    shown = printed(found)
    cell = "linear-base/data=2/b64/fp32/nnx_jit"
    assert f"ended differently\n  {cell}: ok -> wrong: gradients 2 " in shown
    for text in (
        page(found),
        page(found, markdown=True),
    ):
        assert "wrong: gradients 2 times too large" in text


def test_without_a_common_baseline_step_times_are_compared(tmp_path: Path) -> None:
    b = replace(ELSEWHERE, endings={(synthetic.BASELINE, 2): ("crashed", "signal 9")})
    found = compared(tmp_path, PLAN, b)
    sources = {(c.block.split("/")[1], c.source) for c in found.changes
               if c.implementation != synthetic.BASELINE}  # fmt: skip
    assert sources == {("data=1", "baseline"), ("data=2", "step time")}
    facts = [" ".join(table.facts) for table in comparison_report.blocks(found)]
    assert sum("Baselines differ: jit_spmd in A, nnx_jit in B." in text for text in facts) == 2
    assert re.search(r" \N{EN DASH} +undecided", printed(found)), "no ratio to a baseline"


def test_a_cell_measured_apart_has_no_ratio_to_compare(tmp_path: Path) -> None:
    found = compared(tmp_path, PLAN, replace(ELSEWHERE, alone=frozenset({"nnx_jit"})))
    apart = [c for c in found.changes if c.implementation == "nnx_jit"]
    assert {(c.source, c.against_baseline) for c in apart} == {("step time", None)}
    assert all(c.step.interval() for c in apart)


def test_few_rounds_have_values_and_no_verdict(tmp_path: Path) -> None:
    found = compared(tmp_path, replace(PLAN, rounds=4), ELSEWHERE)
    assert {c.verdict.word for c in found.changes} == {"undecided"}
    assert "no interval" in page(found)
    assert "nan" not in printed(found)


def test_compile_time_and_memory_are_shown_where_they_changed(tmp_path: Path) -> None:
    def heavier(row) -> None:
        if row["implementation"] == "nnx_jit":
            row["compile"]["compile_s"] += 1.19
            row["memory"]["total_bytes"] *= 1.5
        if row["implementation"] == "pmap":
            row["memory"]["total_bytes"] *= 1.009
        if row["implementation"] == "shard_map_psum":  # not the same as compiling it
            row["compile"] |= {"compile_s": 9.0, "cache_hits": 1}
        if row["implementation"] == "python_loop":
            row["memory"] = None

    a, b = (synthetic.write(tmp_path, PLAN, name) for name in ("before", "after"))
    assert "memory" not in printed(run_changes.compare(store.load(a), store.load(b)))
    synthetic.rewrite(b, "cells", heavier)
    found = run_changes.compare(store.load(a), store.load(b))
    for change in found.changes:
        expected = (2.0, 1.5) if change.implementation == "nnx_jit" else (None, None)
        assert (change.compile, change.memory) == (pytest.approx(expected[0]), expected[1])
    shown = printed(found)
    (line,) = [line for line in shown.splitlines() if line.startswith("nnx_jit  ")][:1]
    assert line.split()[-2:] == ["2.000", "1.500"]
    assert max(map(len, shown.splitlines())) <= 80
    assert "3.30 MiB to 4.96 MiB" in page(found).replace("\N{NARROW NO-BREAK SPACE}", " ")


def test_other_work_is_said_to_be_other_work(tmp_path: Path) -> None:
    a, b = (synthetic.write(tmp_path, PLAN, name) for name in ("before", "after"))

    def more(row) -> None:
        row["model_flops"] *= 2 if row["workload"] == "mlp" else 1

    synthetic.rewrite(b, "cells", more)
    found = run_changes.compare(store.load(a), store.load(b))
    caveat = comparison_report.caveats(found)["Not the same work"]
    assert "mlp-base/data=1/b64/fp32 and mlp-base/data=2/b64/fp32" in caveat


def test_whose_files_differ_is_said(tmp_path: Path) -> None:
    a = synthetic.write(tmp_path, PLAN, "before")
    b = synthetic.write(tmp_path, replace(PLAN, contents={"pmap": "f" * 16}), "after")
    found = run_changes.compare(store.load(a), store.load(b))
    assert comparison_report.setting(found) == "These differ: files of implementation pmap."
    assert {"key_a", "key_b"} <= set(found.table.columns)

    def share(row, digit="d") -> None:
        for hashes in row["sources"].values():
            hashes["bench/contract/__init__.py"] = digit * 16
            if digit == "d":
                hashes["flax/nnx.py"] = digit * 16

    synthetic.rewrite(a, "cells", lambda row: share(row, "e"))
    synthetic.rewrite(b, "cells", share)
    everyone = run_changes.other_files(store.load(a), store.load(b))
    assert {f"implementation {name}" for name in synthetic.RATIOS} < set(everyone)
    synthetic.rewrite(a, "cells", lambda row: share(row, "d"))
    assert run_changes.other_files(store.load(a), store.load(b)) == ["implementation pmap"]


def test_damage_is_said_on_stderr_and_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("before", "after"):
        synthetic.write(tmp_path / "reports", PLAN, name)
    path = synthetic.launch_files(tmp_path / "reports" / "after")[0]
    path.write_bytes(path.read_bytes().replace(b'"status": "ok"', b'"status": "no"', 1))
    done = command("before", "after")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("warning: reports/after: set aside: launches/0001_")
    assert "Damaged files in B" in done.stdout
    assert "Damaged files in A" not in done.stdout
    assert (
        (tmp_path / "reports/compare_before_after/compare.html")
        .read_text()
        .count("differs from what was stored")
    )


def test_races_of_functions_can_be_compared(tmp_path: Path) -> None:
    """Their rows name no files."""
    plan = synthetic.Plan(devices=(1,), ratios={"old": 1.0, "new": 1.5})
    a, b = (synthetic.write(tmp_path, plan, name) for name in "ab")
    synthetic.rewrite(a, "cells", lambda row: row.pop("sources"))
    found = run_changes.compare(store.load(a), store.load(b))
    assert {change.implementation for change in found.changes} == {"old", "new"}


def test_runs_that_share_nothing_can_be_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, replace(PLAN, devices=(1,)), replace(PLAN, devices=(2,)))
    assert comparison_report.tally(found).startswith("No cell has a time in both runs.")
    shown = printed(found)
    assert shown.startswith("No cell has a time in both runs."), "the answer"
    assert "B over A (95 %)" not in shown
    assert len(shown.splitlines()) < 20
    empty = store.load(store.create(tmp_path, synthetic.manifest(PLAN, "empty")))
    nothing = run_changes.compare(empty, empty)
    assert "No cell" in page(nothing)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunComparison, Path]:
    """Runs whose every text is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    ratios = {"jit_spmd": 1.0, HOSTILE: 1.1}
    a = replace(PLAN, ratios=ratios, endings={("jit_spmd", 2): ("wrong", HOSTILE)})
    b = replace(ELSEWHERE, ratios=ratios, devices=(1, 2, 4))
    paths = [synthetic.write(folder, plan, name) for plan, name in ((a, "one"), (b, "two"))]

    def spoil(manifest) -> None:
        manifest["run"] = HOSTILE
        manifest["host"]["cpu"] = HOSTILE
        manifest["environment"] = {HOSTILE: HOSTILE}
        manifest["git"]["commit"] = HOSTILE

    synthetic.rewrite(paths[1], "manifest", spoil)
    return comparison_report.build(*map(store.load, paths), folder / "out", None), folder / "out"


def test_hostile_text_is_inert_on_the_page(hostile: tuple[RunComparison, Path]) -> None:
    text = (hostile[1] / "compare.html").read_text(encoding="utf-8")
    structure = Elements()
    structure.feed(text)
    assert structure.open == []
    tags = {tag for tag, _ in structure.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form"}
    for _, attributes in structure.found:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src"):
            target = attributes.get(name)
            assert target is None or re.match(r"#|\w+\.csv$", target)
    assert html.escape("</td><script>alert(1)</script>", quote=False) in text
    policies = [a["content"] for t, a in structure.found if t == "meta" and "http-equiv" in a]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; ")
    identifiers = set(re.findall(r'\bid="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= identifiers


def test_hostile_text_is_inert_in_markdown(hostile: tuple[RunComparison, Path]) -> None:
    lines = (hostile[1] / "compare.md").read_text(encoding="utf-8").splitlines()
    # A line of code shows everything as it is.
    text = "\n".join(line for line in lines if not line.startswith("    "))
    assert "alert(1)" in text
    assert "<script" not in text
    assert "![i]" not in text
    assert "# H" not in text.splitlines()
    width = 0
    for line in text.splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line))
        assert not bars or not width or bars == width, line
        width = bars


def test_hostile_text_cannot_command_the_terminal(hostile: tuple[RunComparison, Path]) -> None:
    text = printed(hostile[0])
    assert "alert(1)" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_colours_are_for_terminals_that_want_them(
    reports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_changes.compare(*(store.load(reports / name) for name in ("before", "after")))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[33m" in printed(found, force_terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in printed(found, force_terminal=True)
    assert "\x1b" not in printed(found)


def test_the_terminal_has_80_columns_and_ends_with_the_tally(reports: Path) -> None:
    found = run_changes.compare(*(store.load(reports / name) for name in ("before", "after")))
    lines = printed(found).splitlines()
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("shard_map_psum "))
    change = against(found)["linear-base/data=1/b64/fp32/shard_map_psum"]
    assert change.against_baseline is not None
    ends = f"{change.step.low:.3f}\N{EN DASH}{change.step.high:.3f}"
    assert f"{change.step.value:.3f} ({ends})" in row
    assert f"{change.against_baseline.value:.3f} (" in row
    assert comparison_report.tally(found) in " ".join(lines)


def test_the_page_says_what_its_step_times_are(tmp_path: Path) -> None:
    """They are those of the reports, whose quotient is not that of the rounds' own medians."""
    found = compared(tmp_path, PLAN, replace(PLAN, seed=2))
    (change, *_) = (one for one in found.changes if one.against_baseline)
    assert change.step.value != pytest.approx(change.b["step_s"] / change.a["step_s"], rel=1e-6)
    text = " ".join(page(found, markdown=True).split())
    assert "As in each run's report, where it is the baseline's median times the ratio" in text
    assert "median over all rounds" not in text


def test_the_files_say_the_same_each_time(reports: Path, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        comparison_report.build(
            *(store.load(reports / run) for run in ("before", "after")), tmp_path / name, None
        )
        made.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert made[0] == made[1]
    assert set(made[0]) == {"compare.html", "compare.md", "compare.csv"}
    rows = list(csv.DictReader(io.StringIO(made[0]["compare.csv"].decode())))
    assert len(rows) == 28
    row = next(row for row in rows if row["cell"] == "mlp-base/data=2/b64/fp32/python_loop")
    assert (row["status_a"], row["verdict_from"]) == ("ok", "baseline")
    assert float(row["against_baseline_low"]) < 1 < float(row["against_baseline_high"])
    assert float(row["step_s_b"]) / float(row["step_s_a"]) == pytest.approx(1.08, rel=0.1)


def command(*words_: str):
    return CliRunner().invoke(app, ["compare", *words_])


def test_the_command_writes_beside_the_runs(
    reports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports").symlink_to(reports, target_is_directory=True)
    done = command("before", str(reports / "after"))
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "comparison: reports/compare_before_after/compare.html"
    assert "\x1b" not in done.output
    assert max(map(len, done.output.splitlines())) <= 80
    assert (reports / "compare_before_after" / "compare.md").is_file()
    done = command("before", "before", "--output", "elsewhere/deep", "--margin", "5")
    assert done.exit_code == 0, done.output
    assert "--margin 5<" in Path("elsewhere/deep/compare.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("before", "befor"), "there is no run 'befor' in reports/; did you mean before?"),
        (("before", "before", "--margin", "two"), "--margin: 'two' is not a percentage"),
        (("before", "before", "--margin", "0"), "--margin: '0' is not"),
        (("before", "before", "--margin", "nan"), "--margin: 'nan' is not"),
        (("before", "before", "--margin", "100"), "above 0 and below 100"),
        (("before", "old"), "this version reads schema"),
        (("before", "before", "--output", "file"), "--output: file is a file, not a folder"),
    ],
)
def test_bad_input_is_refused(
    given: tuple[str, ...],
    said: str,
    reports: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "reports" / "old"
    old.mkdir(parents=True)
    (old / store.MANIFEST).write_text('{"schema": 0}')
    (tmp_path / "reports" / "before").symlink_to(reports / "before", target_is_directory=True)
    (tmp_path / "file").write_text("")
    done = command(*given)
    assert done.exit_code == BAD_INPUT
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    assert "Traceback" not in done.output
