"""What is published is found, checked, and listed with the numbers that it stores."""

from __future__ import annotations

import getpass
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import synthetic
from typer.testing import CliRunner

from bench.__main__ import app
from bench.analyse import change_points
from bench.commands import exits
from bench.measure.run_folder import find_run
from bench.present.gallery import history_tables, index, published_run
from bench.records import store
from bench.records.paths import ROOT
from bench.records.step_programs import Operation, packed
from lockstep import load

PLAN = synthetic.Plan(
    workloads=("gpt2-nano",), devices=(2,), usable_cores=2,
    ratios={"jit_spmd": 1.0, "pmap": 1.5, "shard_map_psum": 0.5},
    endings={("pmap", 0): ("crashed", "ValueError: no")},
)  # fmt: skip
NAME = "gpt2-nano_2-core-cpu_2026-11-21"


def git(folder, *words):
    identity = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def lockstep(*words):
    return CliRunner().invoke(app, words)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("/reports/*/\n")
    (tmp_path / "reports").mkdir()
    return tmp_path


@pytest.fixture
def quick_report(monkeypatch):
    """Draw nothing: the pages are not what is looked at."""

    def build(run):
        (run.directory / "report.html").write_text("a report")

    monkeypatch.setattr("bench.present.report_files.build", build)


def test_a_run_is_published_and_listed(checkout):
    reports = checkout / "reports"
    synthetic.write(reports, PLAN, "mine")
    done = lockstep("publish", "mine")
    assert done.exit_code == 0, done.output
    command = f"git add --force reports/{NAME} reports/README.md reports/index.html"
    assert done.output.splitlines() == [f"published: reports/{NAME}", f"to commit: {command}"]
    published = sorted(path.name for path in (reports / NAME).iterdir())
    assert published == [
        *("blocks.csv", "cells.csv", "launches", "manifest.json", "plots"),
        *("report.html", "report.md", "samples.csv", "share.pdf", "share.png", "share.svg"),
    ]
    for file in synthetic.launch_files(reports / "mine"):
        assert (reports / NAME / "launches" / file.name).read_bytes() == file.read_bytes()
    manifest = store.read_manifest(reports / "mine")
    assert store.read_manifest(reports / NAME) == {**manifest, "run": NAME}
    git(checkout, *command.split()[1:])
    git(checkout, "commit", "--quiet", "--message", "published")

    before = {name: (reports / name).read_text() for name in (index.MARKDOWN, index.PAGE)}
    synthetic.write(reports, PLAN, "scratch")
    done = lockstep("gallery")
    assert done.exit_code == 0, done.output
    answer, index_of_all = done.output.splitlines()
    assert re.fullmatch(
        rf"{NAME}: shard_map_psum is fastest; jit_spmd takes 1\.9 to 2\.\d times as long\.", answer
    )
    assert index_of_all == "gallery: reports/index.html"
    markdown, html = ((reports / name).read_text() for name in (index.MARKDOWN, index.PAGE))
    assert {index.MARKDOWN: markdown, index.PAGE: html} == before
    assert f"### [{NAME}]({NAME}/report.md)" in markdown
    broken = NAME.replace("_", "_<wbr>")
    assert f'<a href="{NAME}/report.html">{broken}</a>' in html
    for text in (markdown, html):
        assert "shard_map_psum is fastest; " in text
        assert "3 cells: 2 ok, 1 crashed." in text
        assert "2 cores of An eight-core processor" in text
        assert "jax 0.10.2" in text
        assert "scratch" not in text
        assert "mine" not in text
    assert "default-src 'none'" in html
    assert not re.search(r"<script|src=(?!\"data:)|https?://", html)


def test_a_projection_goes_with_its_run(checkout):
    reports = checkout / "reports"
    projection = synthetic.write(reports, PLAN, "mine") / "projection"
    projection.mkdir()
    for name in ("projection.html", "predictions.csv", "predictions.parquet"):
        (projection / name).write_text("predicted")
    done = lockstep("publish", "mine")
    assert done.exit_code == 0, done.output
    published = sorted(path.name for path in (reports / NAME / "projection").iterdir())
    assert published == ["predictions.csv", "projection.html"]
    assert "projection/projection.html" in (reports / NAME / "report.md").read_text()

    (projection / "projection.html").write_text("/home/somebody/run")
    shutil.rmtree(reports / NAME)
    done = lockstep("publish", "mine")
    assert done.exit_code == exits.BAD_INPUT
    assert "projection/projection.html: '/home/somebody' identifies this machine" in done.output


def test_a_host_s_name_within_packed_data_is_chance(checkout, monkeypatch):
    texts = (
        packed([Operation(f"{n}.py:{line}", "add", "f32[]", n, 4) for line in range(200)])
        for n in itertools.count()
    )
    words = (re.search(r"(?<![\w-])[a-z]+[A-Z][a-zA-Z]*(?![\w-])", text) for text in texts)
    word = next(filter(None, words))
    host, by_chance = word[0], word.string
    monkeypatch.setattr("platform.node", lambda: host)
    directory = synthetic.write(checkout / "reports", PLAN, "mine")

    def pack(row):
        row["program"] = {
            "fingerprint": "f", "dispatch": "d", "host_calls": 1, "operations": by_chance,
        }  # fmt: skip

    synthetic.rewrite(directory, "cells", pack)
    done = lockstep("publish", "mine")
    assert done.exit_code == 0, done.output
    page = f'{{"timelines":"{"a" * 200}/{host}+"}}'
    assert published_run._private_words(page) == [host]
    assert not published_run._private_words(published_run._without_code(page))
    shutil.rmtree(checkout / "reports" / NAME)
    synthetic.rewrite(directory, "cells", lambda row: row.update(reason=f"on {host}"))
    assert f"'{host}' identifies this machine" in lockstep("publish", "mine").output


def test_a_run_that_went_on_is_published_in_its_own_place_alone(checkout, quick_report):
    directory = synthetic.write(checkout / "reports", PLAN, "mine")
    published = checkout / "reports" / NAME
    assert lockstep("publish", "mine").exit_code == 0
    synthetic.rewrite(directory, "cells", lambda row: row.update(reason="went on"))
    again = lockstep("publish", "mine")
    assert again.exit_code == 0, again.output
    assert "went on" in "".join(p.read_text() for p in published.rglob("*.jsonl"))
    assert not [*published.parent.glob(".publish-*")]
    (published / "manifest.json").write_text("{")
    once_more = lockstep("publish", "mine")
    assert once_more.exit_code == exits.BAD_INPUT
    assert f"reports/{NAME} cannot be read; remove it" in once_more.output


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("no file /home/somebody/steps/mine.py", "/home/somebody"),
        ("no file C:\\Users\\somebody\\mine.py", "C:"),
        ("in HERE/implementations/mine.py", "HERE/"),
        ("on a-host.example.org", "a-host"),
        ("by some-body", "some-body"),
    ],
)
def test_what_tells_of_the_machine_is_not_published(
    reason, told, checkout, quick_report, monkeypatch
):
    monkeypatch.setattr(published_run.platform, "node", lambda: "a-host.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "some-body")
    reason, told = (text.replace("HERE", str(checkout)) for text in (reason, told))
    plan = replace(PLAN, endings={("pmap", 0): ("crashed", reason)})
    synthetic.write(checkout / "reports", plan, "mine")
    done = lockstep("publish", "mine")
    assert done.exit_code == exits.BAD_INPUT
    assert "launch1.jsonl: " in done.output
    assert told in done.output
    assert [path.name for path in (checkout / "reports").iterdir()] == ["mine"]


def test_too_large_damaged_or_empty_runs_are_not_published(checkout, quick_report, monkeypatch):
    reports = checkout / "reports"
    run = synthetic.write(reports, PLAN, "mine")
    with monkeypatch.context() as patch:
        patch.setattr(published_run, "MOST_BYTES", 1000)
        assert "MiB, at most 0 are allowed" in lockstep("publish", "mine").output
    with synthetic.launch_files(run)[0].open("r+b") as file:
        file.write(b"X")
    done = lockstep("publish", "mine")
    assert done.exit_code == exits.BAD_INPUT
    assert "reports/mine is damaged: launches/0001_" in done.output
    store.create(reports, synthetic.manifest(PLAN, "empty"))
    assert "has no cells" in lockstep("publish", "empty").output
    assert sorted(path.name for path in reports.iterdir()) == ["empty", "mine"]


@pytest.mark.parametrize(
    ("change", "typed", "name"),
    [
        ({}, {}, NAME),
        ({"workloads": ("mlp-base", "gpt2-nano")}, {},
         "gpt2-nano-and-mlp-base_2-core-cpu_2026-11-21"),
        ({"workloads": ("mlp-base", "gpt2-nano", "linear-base"), "usable_cores": 64}, {},
         "quick_64-core-cpu_2026-11-21"),
        ({"workloads": ("mlp-base", "gpt2-nano", "linear-base")}, {"workloads": ["mlp"]},
         "3-workloads_2-core-cpu_2026-11-21"),
        ({"platform": "gpu", "device_kind": "NVIDIA H200"}, {},
         "gpt2-nano_nvidia-h200_2026-11-21"),
    ],
)  # fmt: skip
def test_names(change, typed, name, tmp_path):
    run = store.load(synthetic.write(tmp_path, replace(PLAN, rounds=2, **change)))
    run.manifest["config"]["options"] = typed
    assert published_run.published_name(run) == name


def test_several_devices_are_counted():
    manifest = synthetic.manifest(replace(PLAN, platform="tpu", device_kind="TPU v5 lite"))
    assert published_run.hardware_name({**manifest, "device_count": 8}) == "8-tpu-v5-lite"


def test_outside_of_git_every_run_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    synthetic.write(tmp_path, PLAN, "one")
    (tmp_path / "notes").mkdir()
    assert [entry.folder for entry in index.find(tmp_path)] == ["one"]


def test_runs_that_started_in_the_same_second_are_not_one(tmp_path, monkeypatch, quick_report):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    synthetic.write(tmp_path, PLAN, "one")
    other = synthetic.write(tmp_path, PLAN, "other")
    for kind in ("blocks", "cells", "samples"):
        synthetic.rewrite(other, kind, lambda row: row.update(attempt=f"other-{row['launch']}"))
    assert {entry.folder for entry in index.find(tmp_path)} == {"one", "other"}
    both = [published_run.publish(store.load(tmp_path / n), tmp_path) for n in ("one", "other")]
    assert [folder.name for folder in both] == [NAME, f"{NAME}_2"]


def test_a_run_without_rows_is_listed_and_has_no_verdicts(tmp_path, monkeypatch):
    """One that was interrupted in its first block, or whose only launch is damaged."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = store.create(tmp_path, synthetic.manifest(PLAN, "empty"))
    synthetic.write(tmp_path, PLAN, "whole")
    found = {entry.folder: entry for entry in index.find(tmp_path)}
    assert found.keys() == {"empty", "whole"}
    assert found["empty"].headline == "Nothing could be compared."
    run = load(folder)
    assert run.verdicts.empty
    with pytest.raises(ValueError, match="the run has no chart of the kind 'ratios'"):
        run.plot()


def test_the_last_run_is_not_its_published_copy(checkout, quick_report):
    original = synthetic.write(checkout / "reports", PLAN, "first-by-name")
    (original / "cells.parquet").touch()
    published_run.publish(store.load(original), checkout / "reports")
    assert find_run("last").name == "first-by-name"


@pytest.mark.parametrize("words", [("publish", "one"), ("gallery",)])
def test_a_folder_that_cannot_be_written_is_named(words, checkout, quick_report):
    synthetic.write(checkout / "reports", PLAN, "one")
    (checkout / "reports" / "README.md").mkdir()
    ended = lockstep(*words)
    assert ended.exit_code == exits.BAD_INPUT, ended.output
    assert ended.output.startswith("error: ")
    assert "README.md" in ended.output


def test_the_newest_run_comes_first_and_uncommitted_changes_are_told(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name, day in {
        "middle": "2026-11-22",
        "newest": "2026-11-23",
        "oldest": "2026-11-21",
    }.items():

        def start(manifest, name=name, day=day):
            manifest["started_at"] = f"{day}T00:00:00+00:00"
            manifest["git"]["dirty"] = name == "newest"

        synthetic.rewrite(synthetic.write(tmp_path, PLAN, name), "manifest", start)
    found = index.find(tmp_path)
    assert [entry.folder for entry in found] == ["newest", "middle", "oldest"]
    told = [any("uncommitted changes" in fact for fact in entry.facts) for entry in found]
    assert told == [True, False, False]


def published_daily(folder, days, upgraded, started="2026-10-{:02}T09:00:00+00:00"):
    """A run a day; from one of them on, with another jax, in which `pmap` is slower."""
    for day in range(1, days + 1):
        late = day >= upgraded
        plan = replace(
            PLAN, seed=1000 * day, rounds=8, endings={},
            ratios={"jit_spmd": 1.0, "pmap": 1.2 if late else 1.1},
        )  # fmt: skip

        def start(manifest, day=day, late=late):
            manifest["started_at"] = started.format(day)
            manifest["versions"]["jax"] = "0.12.0" if late else "0.11.0"

        synthetic.rewrite(synthetic.write(folder, plan, f"day{day}"), "manifest", start)
    index.build(folder)
    return ((folder / name).read_text() for name in (index.PAGE, index.MARKDOWN))


def test_histories_show_what_changed_and_with_what(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    page, markdown = published_daily(tmp_path, days=12, upgraded=7)
    for text in (page, markdown):
        assert "gpt2-nano, fp32, 2 cores of An eight-core processor" in text
        assert "pmap, data=2, batch 64: from 2026-10-07 09:00 UTC on, the ratio is 1.0" in text
        assert "times what it was. Changed with it: jax 0.11.0 to 0.12.0." in text
        assert "2026-10-01 to 2026-10-12" in text
        (bars,) = re.findall(f"[{history_tables.BARS}]{{2,}}", text)  # the baseline has no ratio
        assert len(bars) == 12
        assert max(bars[:6]) < min(bars[6:]), "the second half is slower"


def test_a_change_between_runs_of_one_day_has_a_time(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    hourly = "2026-10-01T{:02}:30:00+00:00"
    for text in published_daily(tmp_path, days=12, upgraded=7, started=hourly):
        assert "pmap, data=2, batch 64: from 2026-10-01 07:30 UTC on, the ratio is 1.0" in text


def test_few_runs_have_no_change_points(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    alone = "".join(published_daily(tmp_path / "one", days=1, upgraded=9))
    assert "History" not in alone
    page, markdown = published_daily(tmp_path / "two", days=2, upgraded=2)
    fewest = change_points.fewest()
    for text in (page, markdown):
        assert f"too few runs: 2 of {fewest}" in text
        assert f"at least {fewest} runs" in text
        assert "differs between runs" in text
    assert "Changed with it" not in page
    assert len(re.findall(f"[{history_tables.BARS}]{{2,}}", page)) == 1


def test_self_tests_and_faults_have_sections_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("selftest_2-core-cpu_2026-11-28", "faults_2-core-cpu_2026-11-30"):
        shutil.copytree(ROOT / "reports" / name, tmp_path / name)
    synthetic.write(tmp_path, PLAN, "run")
    found = index.find(tmp_path)
    assert [entry.kind for entry in found] == [index.RUNS, index.SELFTESTS, index.FAULTS]
    figures = json.loads((tmp_path / found[1].folder / "figures.json").read_text())
    met = sum(target["met"] for target in figures["targets"])
    assert found[1].headline == f"{met} of {len(figures['targets'])} targets met."
    results = json.loads((tmp_path / found[2].folder / "faults.json").read_text())
    assert found[2].headline.startswith(f"{len(results['rows'])} faults: ")
    for entry in found[1:]:
        assert (tmp_path / entry.folder / entry.page).is_file()
        assert (tmp_path / entry.folder / entry.markdown).is_file()


@pytest.mark.parametrize("file", ["manifest.json", "faults.json", "selftest.json"])
def test_a_folder_that_cannot_be_read_is_named_and_the_index_stays(file, checkout):
    reports = checkout / "reports"
    (reports / "torn").mkdir()
    (reports / "torn" / file).write_text("{")
    (reports / index.MARKDOWN).write_text("as it was")
    git(checkout, "add", "--force", "reports")
    done = lockstep("gallery")
    assert done.exit_code == exits.BAD_INPUT
    assert "error: reports/torn" in done.output
    assert (reports / index.MARKDOWN).read_text() == "as it was"


@pytest.mark.parametrize("file", ["selftest.json", "figures.json", "faults.json"])
def test_results_that_have_changed_are_not_shown(file, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = min(ROOT.glob(f"reports/*_20??-??-??/{file}")).parent
    shutil.copytree(folder, tmp_path / folder.name)
    path = tmp_path / folder.name / file
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(store.StoreError, match=rf"{file} is damaged: differs from what was"):
        index.find(tmp_path)


def test_stored_text_is_escaped(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    run = synthetic.write(tmp_path, PLAN, "one")

    def name_it(manifest):
        manifest["host"]["cpu"] = "<b>[x](y)"

    synthetic.rewrite(run, "manifest", name_it)
    index.build(tmp_path)
    assert "&lt;b&gt;[x](y)" in (tmp_path / index.PAGE).read_text()
    assert "&lt;b&gt;\\[x\\](y)" in (tmp_path / index.MARKDOWN).read_text()
