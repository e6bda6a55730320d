"""The command line, from the outside: a run with a worker that behaves as told."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from fronts import SMALL, Done, Front

from bench.analyse.verdicts import ALPHA
from bench.commands.run import run_pytest
from bench.commands.shared_options import plain_console
from bench.measure.processes.group import free_port
from bench.measure.run_folder import keep_own_files, own_files, resumed_options
from bench.plan.options import Options
from bench.plan.selection import keyword
from bench.records import files, store
from bench.records.cells import StepOptions
from bench.records.paths import ROOT
from bench.records.rows import SCHEMA
from tests.slow import slow


@pytest.fixture
def front(tmp_path: Path) -> Front:
    return Front(tmp_path)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Front, Done]:
    """The run `mixed`, which ended with ok and wrong cells."""
    front = Front(tmp_path_factory.mktemp("mixed")).told(pmap="wrong")
    return front, front("run", *SMALL, "--run", "mixed")


def test_a_run_that_is_all_ok(front: Front) -> None:
    mine = front.folder / "mine.py"
    mine.touch()
    path = ("--implementations", "python_loop", "jit_spmd", "pmap", "--implementation-path", mine)
    chosen = ("-k", "data=2 and not python_loop")
    done = front.told(pmap="unsupported")("run", *SMALL, "--run", "r", *map(str, path), *chosen)
    assert done.code == 0, done
    lines = done.out.splitlines()
    assert lines[0].startswith("mlp-base/data=2/b256/fp32  2 ok, 1 unsupported")
    assert lines[-1] == "report: reports/r/report.html"
    assert "3 cells: 2 ok, 1 unsupported" in done.out
    assert max(map(len, lines)) <= 80
    assert "passed" not in done.out
    assert not done.err
    # Only what was selected was measured.
    (job,) = front.jobs
    assert job["mesh"] == "data=2"
    assert job["implementations"] == ["jit_spmd", "pmap", "mine"]
    assert len(front.stored("r").cell_rows) == 3
    # What is stored tells nothing of people and machines.
    manifest = front.stored("r").manifest
    assert manifest["argv"][-3:] == ["mine.py", *chosen]
    assert manifest["config"]["meshes"] == ["data=1", "data=2"]
    assert manifest["config"]["options"]["implementation_path"] == ["mine.py"]
    text = json.dumps(manifest)
    assert str(front.folder) not in text
    assert not re.search(rf"\b{re.escape(os.uname().nodename)}\b", text)
    assert '"node"' not in (front.folder / "reports/r/benchmark.json").read_text()


def test_a_wrong_cell_fails_the_run_with_its_reason(mixed: tuple[Front, Done]) -> None:
    front, done = mixed
    assert done.code == 1
    assert "wrong  mlp-base/data=1/b256/fp32/pmap" in done.out
    assert "gradients 2 times too large" in done.out
    assert "6 cells: 4 ok, 2 wrong" in done.out
    assert done.out.splitlines()[-1] == "report: reports/mixed/report.html"
    arms = ["jit_spmd", "pmap", "python_loop"]
    assert [job["implementations"] for job in front.jobs] == [arms, arms]


def test_samples_are_replayed_and_read_by_pytest_benchmark(mixed: tuple[Front, Done]) -> None:
    front, _ = mixed
    rows = front.benchmarks("mixed")
    assert sorted(rows) == [
        f"mlp-base/data={size}/b256/fp32/{name}"
        for size in (1, 2)
        for name in ("jit_spmd", "python_loop")
    ]
    row = rows["mlp-base/data=2/b256/fp32/python_loop"]
    # Throughput time of a step: the fake's second ok arm takes 20 us for 10 steps.
    assert row["stats"]["data"] == pytest.approx([2e-6, 2.0001e-6, 2.0002e-6])
    assert row["group"] == "mlp-base/data=2/b256/fp32"
    assert row["extra_info"]["status"] == "ok"
    assert row["extra_info"]["mesh"] == "data=2"
    assert row["extra_info"]["tier"] == 0, "one of the leaders"
    assert row["extra_info"]["behind_low"] == 1
    assert "behind_high" not in row["extra_info"], "too few rounds for a bound"
    assert row["extra_info"]["samples/s"] == pytest.approx(256 / 2.0001e-6)
    compared = subprocess.run(
        [
            Path(sysconfig.get_path("scripts"), "pytest-benchmark"),
            *("compare", "reports/mixed/benchmark.json", "--columns=median,rounds"),
        ],
        cwd=front.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "mlp-base/data=2/b256/fp32/jit_spmd" in compared.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--resume", "mxied"), "there is no run 'mxied'"),
        (("report", "mxied"), "did you mean mixed?"),
        (("run", "--run", "mixed"), "--resume mixed"),
        (("run", "--run", "a/b"), "'a/b' is not a folder's name"),
        (("run", "--run", "a b"), "'a b' is not a folder's name: use up to 100 letters"),
        (("run", "--resume", "mixed", "--rounds", "4"), "--rounds: a resumed run keeps"),
        (("run", "--dry-run", "--seconds", "x"), "--seconds: 'x' is not"),
        (("selftest", "--seconds", "inf"), "'--seconds': 'inf'; it should be less than or equal"),
        (("run", "--dry-run", "--margin", "200"), "--margin: '200' is not a percentage"),
        (("run", "--dry-run", "--budget", "-1"), "--budget: '-1' is not a positive number"),
    ],
)
def test_bad_input_is_refused(
    mixed: tuple[Front, Done], words: tuple[str, ...], message: str
) -> None:
    front, _ = mixed
    done = front(*words)
    assert done.code == 4
    assert message in done.err
    assert not done.out.strip()
    assert len(front.jobs) == 2, "nothing was run"


def test_several_faults_are_one_message(front: Front) -> None:
    done = front(
        *("run", "--workloads", "mpl", "--meshes", "data=64", "--implementation-path", "a.py")
    )
    assert done.code == 4
    assert "3 things are wrong" in done.err
    for part in ("there is no file a.py", "did you mean mlp", "--devices 64 allows it"):
        assert part in done.err


def test_worker_failures_are_named(front: Front) -> None:
    done = front.told(pmap="segv", jit_spmd="oom always")(
        *("run", *SMALL, "--run", "r", "-k", "data=1")
    )
    assert done.code == 1
    assert "3 cells: 1 ok, 1 crashed, 1 oom" in done.out
    assert "SIGSEGV" in done.out
    assert "RESOURCE_EXHAUSTED" in done.out
    assert list(front.benchmarks("r")) == ["mlp-base/data=1/b256/fp32/python_loop"]


@pytest.mark.parametrize(
    ("expression", "cell", "found"),
    [
        ("data=1", "mlp-base/data=1/b8/fp32/x", True),
        ("data=1", "mlp-base/data=16/b8/fp32/x", False),
        ("data=1", "mlp-base/data=1,model=2/b8/fp32/x", True),
        ("model=2", "mlp-base/data=1,model=2/b8/fp32/x", True),
        ("data=1,model=2", "mlp-base/data=1,model=2/b8/fp32/x", True),
        ("data=1,model=2", "mlp-base/data=1,model=4/b8/fp32/x", False),
        ("mlp-base/data=1/b8", "mlp-base/data=1/b8/fp32/x", True),
        ("mlp-base/data=1/b8", "mlp-base/data=1,model=2/b8/fp32/x", False),
    ],
)
def test_keywords_delimit_sizes(expression: str, cell: str, found: bool) -> None:
    assert (keyword(expression) in keyword(cell)) is found


def test_names_with_equals_signs_are_selected(front: Front) -> None:
    expression = "mlp-base/data=1/b256 and not (pmap or jit_spmd)"
    done = front(
        *("run", "--workloads", "mlp", "--devices", "16", "--collect-only", "-k", expression)
    )
    assert done.code == 0
    items = [line.partition("[")[2] for line in done.out.splitlines() if "[" in line]
    assert items == ["mlp-base/data=1/b256/fp32/python_loop]"]
    assert re.search(r"1/\d+ tests collected \(\d+ deselected\)", done.out)
    assert not (front.folder / "reports").exists()
    assert not front.jobs


def test_nothing_selected(front: Front) -> None:
    done = front("run", *SMALL, "-k", "nobody")
    assert done.code == 5
    assert "none of the 6 cells is selected; names are like mlp-base/data=1/" in done.out
    assert front("run", *SMALL, "-k", "nobody", "--dry-run").out == done.out, "no time is told"
    assert front("run", *SMALL, "-k", "benchmark", "--dry-run").code == 5, "no word of pytest's"
    assert not [path for path in front.folder.iterdir() if path.is_dir()]


def test_x_stops_and_resume_measures_what_is_missing(front: Front) -> None:
    done = front.told(jit_spmd="wrong")("run", *SMALL, "--run", "r", "-x")
    assert done.code == 1
    assert len(front.jobs) == 1
    assert (front.folder / "reports/r/report.html").exists()
    done = front.told()("run", "--resume", "r")
    assert done.code == 1, "the stored cell is still wrong"
    assert sorted(job["mesh"] for job in front.jobs) == ["data=1", "data=2"]
    assert front.jobs[1]["rounds"] == 3
    assert len(front.benchmarks("r")) == 5


def outcome(run: store.Run) -> list[tuple]:
    """What two runs must agree in, whatever they measured."""
    return sorted(
        (r["cell"], r["launch"], r["status"], r["key"], r.get("interleaved") is False)
        for r in run.last_cell_rows
    )


@pytest.mark.slow
def test_a_killed_run_is_continued_and_comes_to_the_same(front: Front) -> None:
    words = ("run", *SMALL, "--launches", "2", "--run", "r")
    elsewhere = Front(front.folder / "uninterrupted")
    elsewhere.folder.mkdir()
    behaviour = {"python_loop": "wrong", "pmap": "oom"}
    assert elsewhere.told(**behaviour)(*words).code == 1
    resume = ("run", "--resume", "r")
    killed = [
        (words, "0 0.5", 0),
        (resume, "1 0.6", 1),
        (resume, "1 1.0", 2),
    ]
    front.told(**behaviour)
    for command, place, launches in killed:
        front.environment["FAKE_KILL"] = place
        assert front(*command).code == -signal.SIGKILL
        stored = front.stored("r")
        assert len({(row["block"], row["launch"]) for row in stored.block_rows}) == launches
        assert stored.damaged == [], "what was half-written is not a launch"
        assert list((front.folder / "reports/r" / store.LAUNCHES).glob("*.part"))
    del front.environment["FAKE_KILL"]

    # Killed while a worker measures; until then, nobody else may go on with it.
    process = front.told(**behaviour, jit_spmd="hang").start(*resume)
    pids = front.wait_for_hang(process)
    try:
        refused = front(*resume)
        assert refused.code == 4
        assert "reports/r is being measured by another process" in refused.err
        assert front(*resume, "--dry-run").code == 0, "reading is free"
    finally:
        process.kill()
        for pid in map(int, pids.read_text().split()):
            os.kill(pid, signal.SIGKILL)
        process.communicate()

    done = front.told(**behaviour)(*resume)
    assert done.code == 1, "some cells are wrong"
    stored, whole = front.stored("r"), elsewhere.stored("r")
    assert outcome(stored) == outcome(whole)
    assert len(stored.samples) == len(whole.samples)
    assert stored.damaged == []
    # No kill has cost more than the launch that it fell into.
    launches = [(job["mesh"], job["launch"]) for job in front.jobs if job["interleaved"]]
    planned = {(job["mesh"], job["launch"]) for job in elsewhere.jobs}
    assert set(launches) == planned
    assert len(launches) <= len(planned) + len(killed) + 1


NAME = "mlp-base_data=1_b256_fp32"


@pytest.mark.slow
def test_what_is_damaged_is_measured_again(front: Front) -> None:
    words = ("--launches", "2", "-k", "data=1")
    front("run", *SMALL, "--run", "r", *words)
    before = outcome(front.stored("r"))
    path = front.folder / "reports/r" / store.LAUNCHES / f"0001_{NAME}_launch1.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"round": 1', b'"round": 7', 1))
    warned = f"reports/r: set aside: launches/{path.name}: differs from what was stored"
    assert warned in front("run", "--resume", "r", "--dry-run").out
    done = front("run", "--resume", "r")
    assert done.code == 0, done
    assert warned in done.out
    assert [(job["launch"], bool(job["proved"])) for job in front.jobs] == [
        (0, False), (1, True), (0, False),
    ]  # fmt: skip
    stored = front.stored("r")
    assert outcome(stored) == before
    (damage,) = stored.damaged
    assert damage.endswith("; measured again since")


@pytest.fixture
def sources(front: Front) -> Path:
    """Implementations and a workload that can be changed."""
    root = front.folder / "root"
    for name in (
        "implementations/jit_spmd",
        "implementations/pmap",
        "bench/contract/workloads/mlp",
    ):
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import own.helper\nfrom bench import contract\n")
    helper = front.folder / "own" / "helper.py"
    helper.parent.mkdir()
    helper.write_text("ONE = 1\n")
    front.environment["FAKE_ROOT"] = str(root)
    return root


def test_a_run_of_files_elsewhere_is_continued_without_naming_them(front: Front) -> None:
    own = front.folder.with_name(f"{front.folder.name}-own") / "mine.py"
    own.parent.mkdir()
    own.write_text("ONE = 1\n")
    words = ("--workloads", "mlp", "--meshes", "data=1", "--rounds", "3", "--run", "r")
    assert front("run", *words, "--implementation-path", str(own)).code == 0
    text = (front.folder / "reports/r" / store.MANIFEST).read_text()
    assert str(own.parent) not in text, "the manifest may be published"
    done = front("run", "--resume", "r", "--budget", "1")
    assert done.code == 0, done
    assert {name for job in front.jobs for name in job["implementations"]} == {
        "python_loop",
        "mine",
    }
    assert own_files(front.folder / "reports/r") == {"implementation_path": [str(own)]}
    own.unlink()
    assert own_files(front.folder / "reports/r") == {}
    refused = front("run", "--resume", "r", "--budget", "1")
    assert refused.code == 4
    assert "there is no file mine.py" in refused.err
    assert "give the current path of the run's file" in refused.err


def test_a_continued_run_finds_a_file_by_the_name_of_its_link(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "latest.py").symlink_to("mine.py")
    given = (str(tmp_path / "latest.py"),)
    keep_own_files(tmp_path, Options(implementation_path=given))
    assert own_files(tmp_path) == {"implementation_path": [*given]}


def test_a_continued_run_keeps_its_folder_for_checkpoints(tmp_path: Path) -> None:
    folder, (run, other) = tmp_path / "fast", (tmp_path / name for name in ("run", "other"))
    for each in (folder, run, other):
        each.mkdir()
    keep_own_files(run, Options(checkpoint=("sync",), checkpoint_dir=str(folder)))
    keep_own_files(other, Options(checkpoint=("sync",)))
    config = {"options": {"checkpoint": ["sync"]}}
    for each in (run, other):
        files.write_sealed(each / store.MANIFEST, {"schema": SCHEMA, "config": config})
    resumed = resumed_options(Options(resume=str(run)))
    assert (resumed.checkpoint, resumed.checkpoint_dir) == (("sync",), str(folder))
    assert resumed_options(Options(resume=str(other))).checkpoint_dir is None
    given = resumed_options(Options(resume=str(run), checkpoint_dir=str(other)))
    assert given.checkpoint_dir == str(other)


def test_a_run_is_not_continued_on_another_machine_or_with_other_variables(front: Front) -> None:
    assert front("run", *SMALL, "--run", "r", "-k", "data=1 and pmap", "--rounds", "2").code == 0
    manifest = store.read_manifest(front.folder / "reports/r")
    other = {**manifest, "host": {**manifest["host"], "cpu": "another processor"}}
    store.write_manifest(front.folder / "reports/r", other)
    front.environment["XLA_FLAGS"] = "--fast"
    refused = front("run", "--resume", "r", "--launches", "2")
    assert refused.code == 4
    assert "r was measured with processor another processor, and here it is" in refused.err
    assert re.search(
        r"with variables \{.*\}, and here it is \{.*'XLA_FLAGS': '--fast'", refused.err
    )


@pytest.mark.slow
def test_a_checkout_may_lie_in_a_folder_whose_name_pytest_would_read_as_a_test(
    tmp_path: Path,
) -> None:
    checkout = tmp_path / "a [1] é%d::x"
    for name in ("bench", "implementations", "lockstep"):
        shutil.copytree(ROOT / name, checkout / name)
    words = ("run", "--workloads", "linear-tiny", "--meshes", "data=1", "--dry-run")
    command = [sys.executable, "-m", "bench", *words]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "blocks: 1, cells: " in done.stdout


def test_a_reader_that_leaves_ends_nothing(tmp_path: Path) -> None:
    """As `| head` does; a gate that ended there would judge what it had measured by then."""
    lines = "console = plain_console()\nfor _ in range(99): console.print('x' * 9999)\nexit(7)"
    script = f"from bench.commands.shared_options import plain_console\n{lines}"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as told:
        told.stdout.close()
        assert (told.stderr.read(), told.wait()) == (b"", 7)


@pytest.mark.parametrize("width", ["0", "00", ""])
def test_a_terminal_of_unknown_width_shows_what_is_printed(width, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", width)
    plain_console().print("an answer")
    assert capsys.readouterr().out == "an answer\n"


@pytest.mark.slow
def test_a_run_of_other_sources_is_not_continued(front: Front, sources: Path) -> None:
    front("run", *SMALL, "--run", "r", "-k", "jit_spmd and data=1")
    (sources / "implementations/pmap.py").write_text("import changed\n")
    assert front("run", "--resume", "r", "--dry-run").code == 0, "nothing of it is stored"
    (sources / "bench/contract/workloads/mlp.py").write_text("import own.helper\n")
    (front.folder / "own/helper.py").write_text("ONE = 2\n")
    refused = front("run", "--resume", "r")
    assert refused.code == 4
    changed = "--resume: own/helper.py, workload mlp: changed since r was measured"
    assert changed in refused.err
    assert len(front.jobs) == 1


@pytest.mark.slow
def test_files_that_change_meanwhile_end_the_measuring(front: Front, sources: Path) -> None:
    edited = sources / "implementations/pmap.py"
    done = front.told(edits=str(edited))("run", *SMALL, "--run", "r")
    assert done.code == 4, done
    assert "implementation pmap: changed while r was measured" in done.out + done.err
    assert len(front.jobs) == 1
    assert len(front.stored("r").cell_rows) == 3


@pytest.fixture
def proving(front: Front, sources: Path) -> Front:
    """Runs that leave proofs and programs in a cache of their own, from sources that may change."""
    for path in sources.rglob("*.py"):
        path.write_text("from bench import contract\n")
    front.environment["XDG_CACHE_HOME"] = str(front.folder / "cache")
    return front.told(proves=True)


ONE = (*SMALL, "-k", "pmap and data=1")


def stored_pmap(front: Front, run: str) -> dict:
    """The one row of a run, without what is absent."""
    (row,) = front.stored(run).cell_rows
    assert row["implementation"] == "pmap"
    return {key: value for key, value in row.items() if isinstance(value, str)}


@pytest.mark.slow
def test_a_later_run_proves_and_compiles_nothing_again(proving: Front) -> None:
    assert proving("run", *SMALL, "--run", "r1").code == 0
    assert proving("run", *SMALL, "--run", "r2").code == 0
    assert proving("run", *SMALL, "--run", "r3", "--launches", "2").code == 0
    arms = ["jit_spmd", "pmap", "python_loop"]
    assert [sorted(job["proved"]) for job in proving.jobs] == [[]] * 2 + [arms] * 6
    figures = {"product_flops": 7.0, "traced_flops": 8.0}
    first_launches = [job for job in proving.jobs[2:] if not job["launch"]]
    assert [job["proved"]["pmap"] for job in first_launches] == [figures] * 4
    assert proving.jobs[-1]["proved"]["pmap"] == {"product_flops": 7.0}, "stored once in a run"
    for run in ("r2", "r3"):
        for row in proving.stored(run).cell_rows:
            names = [check["name"] for check in row["proof"]]
            if row["launch"]:
                assert (names, row["compile"]["cache_hits"]) == (["as timed"], 1)
                continue
            assert names == ["fp64 sgd", "as timed"]
            # Cold, and of the run that measured it, however often it is passed on.
            assert (row["compile"]["compile_s"], row["compile"]["cache_hits"]) == (2.0, 0)
            assert (row["proved_in"], row["compiled_in"]) == ("r1", "r1")
    for row in proving.stored("r1").cell_rows:
        assert not {"proved_in", "compiled_in"} & row.keys()


@pytest.mark.slow
def test_a_changed_file_is_proved_again_and_may_be_wrong(proving: Front, sources: Path) -> None:
    proving("run", *ONE, "--run", "r1")
    (sources / "implementations/pmap.py").write_text("from bench import contract\nchanged = 1\n")
    assert proving.told(proves=True, pmap="wrong")("run", *ONE, "--run", "r2").code == 1
    assert stored_pmap(proving, "r2")["status"] == "wrong"
    proving.told(proves=True)("run", *ONE, "--run", "r3")
    assert [job["proved"] for job in proving.jobs] == [{}, {}, {}], "only ok is remembered"
    assert "proved_in" not in stored_pmap(proving, "r3")


@pytest.mark.slow
def test_what_is_edited_meanwhile_is_not_taken_for_what_was_proved(
    proving: Front, sources: Path
) -> None:
    file = sources / "implementations/pmap.py"
    text, edits = file.read_text(), {"proves": True, "edits": str(file)}
    assert proving.told(**edits)("run", *ONE, "--run", "r1").code == 0
    file.write_text(text)
    assert proving.told(proves=True)("run", *ONE, "--run", "r2").code == 0
    done = proving.told(**edits)("run", *ONE, "--run", "r3")
    assert done.code == 4, done
    assert "implementation pmap: changed while r3 was measured" in done.out + done.err
    assert not proving.stored("r3").cell_rows
    assert [bool(job["proved"]) for job in proving.jobs] == [False, False, True]


@pytest.mark.slow
def test_cold_runs_and_damaged_entries_prove_and_compile_again(proving: Front) -> None:
    for number, words in enumerate(((), ("--cold",), ()), 1):
        proving("run", *ONE, "--run", f"r{number}", *words)
    assert "compiled_in" not in stored_pmap(proving, "r2")
    assert stored_pmap(proving, "r3")["compiled_in"] == "r2"
    for entry in (proving.folder / "cache/lockstep/cells").iterdir():
        entry.write_bytes(entry.read_bytes()[:-7])
    assert proving("run", *ONE, "--run", "r4").code == 0
    assert [bool(job["proved"]) for job in proving.jobs] == [False, False, True, False]


@pytest.mark.slow
def test_launches_are_passes_over_all_blocks(front: Front) -> None:
    done = front("run", *SMALL, "--run", "r", "--launches", "3", "--rounds", "20")
    assert done.code == 0
    launches = [(job["launch"], job["mesh"]) for job in front.jobs]
    # The fake's arms differ by a factor of two: two launches leave nothing open.
    assert [launch for launch, _ in launches] == [0, 0, 1, 1]
    assert len(set(launches)) == 4
    assert [bool(job["proved"]) for job in front.jobs] == [False, False, True, True]
    lines = [line for line in done.out.splitlines() if " decided  " in line]
    assert len(lines) == 4
    assert lines[-1].startswith("mlp-base/data=")
    assert " launch 2  3 ok, 2 of 2 decided" in lines[-1]
    stored = front.stored("r")
    assert len(stored.last_cell_rows) == 12
    looks = [look for row in stored.block_rows for look in row["looks"]]
    assert all(look["alpha"] > 0 for look in looks)
    assert {row["rounds"] for row in stored.block_rows} == {16}
    rows = front.benchmarks("r")
    assert len(rows) == 6
    assert all(row["stats"]["rounds"] == 32 for row in rows.values())


@pytest.mark.slow
def test_an_interrupted_launch_is_made_up_for(front: Front) -> None:
    front("run", *SMALL, "--run", "r", "--launches", "2", "-k", "data=1")
    before = len(front.jobs)
    done = front("run", "--resume", "r", "-k", "data=2")
    assert done.code == 0
    assert [(job["mesh"], job["launch"]) for job in front.jobs[before:]] == [
        ("data=2", 0),
        ("data=2", 1),
    ]


@pytest.mark.slow
def test_what_is_stored_is_not_measured_again(front: Front) -> None:
    """Not even where it is undecided; and with a budget, what was spent is spent."""
    words = ("--rounds", "16", "--margin", "0.05", "-k", "data=1")
    front.told(equal=True)("run", *SMALL, "--run", "r", *words)
    assert len(front.jobs) == 1
    front("run", "--resume", "r")
    assert len(front.jobs) == 1
    words = ("--rounds", "16", "--margin", "0.05", "--budget", "2", "-k", "data=1")
    front("run", *SMALL, "--run", "spent", *words)
    before = len(front.jobs)
    front("run", "--resume", "spent", "-k", "data=1")
    assert len(front.jobs) == before


@pytest.mark.slow
def test_isolated_cells_are_other_cells(front: Front) -> None:
    """Their proofs and times say nothing about the step that runs beside the others."""
    for name, words in {"beside": (), "apart": ("--isolate", "pmap")}.items():
        done = front("run", *SMALL, "--run", name, "-k", "data=2", *words)
        assert done.code == 0, done
    assert [job["isolated"] for job in front.jobs] == [[], ["pmap"]]
    beside, apart = (
        {row["implementation"]: row["key"] for row in front.stored(name).cell_rows}
        for name in ("beside", "apart")
    )
    same = {name: key == apart[name] for name, key in beside.items()}
    assert same == {"python_loop": True, "jit_spmd": True, "pmap": False}
    done = front("regress", "HEAD", "--isolate", "pmap", "-k", "pmap")
    assert (done.code, "both steps have to run in the worker" in done.err) == (4, True)


@pytest.mark.slow
def test_variants_have_workers_of_their_own(front: Front) -> None:
    front.environment["XLA_FLAGS"] = "--first"
    words = ("--variant", "v=XLA_FLAGS=--second --third=1", "-k", "data=1")
    done = front("run", *SMALL, "--run", "r", *words)
    assert done.code == 0, done
    flags = {StepOptions.parse(job["options"]).variant: job["xla_flags"] for job in front.jobs}
    assert flags == {"": "--first", "v": "--first --second --third=1"}
    options = {row["options"] for row in front.stored("r").cell_rows}
    assert options == {"fp32", "fp32,variant=v"}
    front("run", "--resume", "r", "-k", "data=2 and variant=v")
    assert front.jobs[-1]["xla_flags"] == "--first --second --third=1", "also when resumed"


def test_a_budget_passes_over_blocks_without_times(front: Front) -> None:
    nothing = dict.fromkeys(("python_loop", "jit_spmd", "pmap"), "unsupported")
    done = front.told(**nothing)("run", *SMALL, "--run", "r", "--budget", "60")
    assert done.code == 0, done
    assert len(front.jobs) == 2


def test_one_implementation_alone_has_all_its_rounds(front: Front) -> None:
    done = front("run", *SMALL, "--run", "r", "--rounds", "20", "-k", "data=1 and pmap")
    assert done.code == 0
    assert {row["rounds"] for row in front.stored("r").block_rows} == {20}


def test_no_look_spends_less_than_nothing(front: Front) -> None:
    """What did not fit beside the others is measured alone, and compared with nothing."""
    words = ("--rounds", "40", "--launches", "2", "-k", "data=1")
    done = front.told(equal=True, jit_spmd="oom")("run", *SMALL, "--run", "r", *words)
    assert done.code == 0, done
    assert [job["interleaved"] for job in front.jobs] == [True, False, True, False]
    looks = [look for row in front.stored("r").block_rows for look in row["looks"]]
    # The first look of each launch settles the other arm.
    assert [(look["rounds"], look["settled"]) for look in looks] == [(16, ["pmap"]), (32, ["pmap"])]
    assert all(look["alpha"] > 0 for look in looks)
    # At 16 of 40 rounds of the first launch and of the second.
    assert [look["spent"] for look in looks] == pytest.approx([0.16 * ALPHA, 0.56 * ALPHA])


@pytest.mark.slow
def test_a_budget_goes_where_it_is_needed(front: Front) -> None:
    """Where everything is decided at once, one launch of each block is all there is to do."""
    done = front("run", *SMALL, "--run", "r", "--rounds", "20", "--budget", "60")
    assert done.code == 0
    assert [job["launch"] for job in front.jobs] == [0, 0]
    # Equal arms are never the same within a margin this small, however fast launches are.
    wide = front.told(equal=True)
    words = ("--rounds", "16", "--margin", "0.0001", "--budget", "8", "-k", "data=1")
    done = wide("run", *SMALL, "--run", "wide", *words)
    assert done.code == 0
    launches = [job["launch"] for job in front.jobs[2:]]
    assert launches == list(range(len(launches)))
    assert len(launches) > 1
    assert "2 comparisons are undecided" in done.out


@pytest.mark.slow
def test_an_undecided_run_names_the_command_that_goes_on_and_it_works(front: Front) -> None:
    words = ("--rounds", "16", "--margin", "0.0001", "-k", "data=1", "--run", "r")
    done = front.told(equal=True)("run", *SMALL, *words)
    assert "2 comparisons are undecided, but within" in done.out
    (command,) = re.findall(r"python -m bench (run --resume r --budget \d+)", done.out)
    before = len(front.jobs)
    more = front(*command.replace("--budget 60", "--budget 7").split(), "-k", "data=1")
    assert more.code == 0, more
    assert len(front.jobs) > before
    assert "-k" not in command
    launches = len(front.jobs)
    assert front("run", "--resume", "r", "--launches", str(launches + 1), "-k", "data=1").code == 0
    assert len(front.jobs) == launches + 1
    assert front.stored("r").manifest["config"]["launches"] == 1
    wide = front("run", "--resume", "r", "--margin", "50", "-k", "data=1")
    assert "undecided" not in wide.out
    assert len(front.jobs) == launches + 1, "a margin needs no measuring"
    assert front.stored("r").manifest["config"]["margin"] == 0.5


@pytest.mark.slow
def test_a_target_goes_on_until_intervals_are_narrow(front: Front) -> None:
    words = ("--target-ci", "0.2", "--rounds", "16", "-k", "data=1")
    done = front("run", *SMALL, "--run", "r", *words)
    assert done.code == 0
    # Decided at once, but it takes about (0.2 / 0.2)^2 t^2 launches that differ by 0.2 % to make
    # an interval of 0.2 %.
    assert 3 < len(front.jobs) < 12
    assert "undecided" not in done.out
    assert "3 cells: 3 ok" in done.out


def test_other_ranks_end_when_rank_0_refuses_the_command(front: Front) -> None:
    words = ("run", *SMALL, "-k", "(", "--distributed", "env")
    port = str(free_port("127.0.0.1"))
    front.environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    front.environment["RANK"] = "1"
    other = front.start(*words)
    front.environment["RANK"] = "0"
    refused = front(*words)
    try:
        assert (refused.code, "'(' is not an expression" in refused.err) == (4, True)
        assert other.communicate(timeout=30) == ("", "")
        assert other.returncode == 0
    finally:
        other.kill()


def test_dry_run_measures_nothing(front: Front) -> None:
    done = front("run", *SMALL, "--dry-run", "-k", "data=2", "--train-steps", "50")
    assert done.code == 0
    assert "training every cell for 50 steps comes on top" in done.out.replace("\n", " ")
    assert "mlp-base/data=2/b256/fp32  about" in done.out
    assert "blocks: 1, cells: 3" in done.out
    assert not (front.folder / "reports").exists()


def test_a_batch_that_meshes_cannot_divide_is_told_to_be_another(front: Front) -> None:
    done = front("run", *SMALL, "--meshes", "data=3", "--dry-run")
    assert "mlp-base/data=3/b258/fp32  about" in done.out
    assert "mlp-base: the batch is 258, because some mesh does not divide the usual 256" in done.out


def test_commands_without_tables_need_not_wait_for_them(mixed: tuple[Front, Done]) -> None:
    """Not even where stored runs tell how long blocks take."""
    front = Front(mixed[0].folder)
    front.environment["PYTHONPROFILEIMPORTTIME"] = "1"
    tables = {"numpy", "pandas", "pyarrow", "scipy", "vl_convert"}
    for words, module, late in (
        (["--help"], "commands.run", {*tables, "pytest", "pydantic"}),
        (["run", *SMALL, "--dry-run"], "measure.engine", tables),
    ):
        process = front.start(*words)
        _, err = process.communicate(timeout=60)
        names = [line.rpartition("|")[2].strip() for line in err.splitlines()]
        assert process.returncode == 0
        assert f"bench.{module}" in names
        assert not late & {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("number", [signal.SIGINT, *slow(signal.SIGTERM)])
def test_an_interruption_keeps_what_is_stored(front: Front, number: signal.Signals) -> None:
    front.environment["XDG_CACHE_HOME"] = str(front.folder / "cache")
    front.environment["PYTHONIOENCODING"] = "ascii"  # As of a terminal that lacks some characters.
    unused = front.folder / "cache/lockstep/unused"
    unused.parent.mkdir(parents=True)
    unused.touch()
    os.utime(unused, (0, 0))
    process = front.told(pmap="hang").start(
        *("run", *SMALL, "--run", "r", "-k", "not data=2 or not pmap")
    )  # data=1, where pmap hangs, comes second
    pids = front.wait_for_hang(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, (out, err)
    assert "Traceback" not in out + err
    assert "interrupted: --resume r measures what is left" in out
    assert out.splitlines()[-1] == "report: reports/r/report.html"
    assert len(front.stored("r").cell_rows) == 2
    assert not unused.exists(), "the user's cache is pruned as after any run"
    asked = front.stored("r").manifest["config"]["blocks"]
    assert asked == ["mlp-base/data=1/b256/fp32", "mlp-base/data=2/b256/fp32"]
    for pid in map(int, pids.read_text().split()):
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "State:\tZ" in status.read_text()


def test_an_interruption_of_the_plan_has_its_own_code_and_stores_nothing(front: Front) -> None:
    interrupted = """
import sys
from bench.__main__ import main
from bench.commands.pytest_plugin import run_plugin
def set_up_run(*_, **__):
    raise KeyboardInterrupt
run_plugin.set_up_run = set_up_run
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", interrupted, "run", *SMALL],
        cwd=front.folder,
        env=front.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (130, "lockstep: interrupted")
    assert not (front.folder / "reports").exists()


def test_an_interruption_of_the_report_says_how_to_build_it(
    mixed: tuple[Front, Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    front, _ = mixed
    monkeypatch.setitem(front.environment, "FAKE_INTERRUPT", "report")
    done = front("run", "--resume", "mixed")
    last = "no report: interrupted; build it: python -m bench report reports/mixed"
    assert (done.code, done.out.splitlines()[-1]) == (130, last)


def test_help_has_examples(front: Front) -> None:
    done = front("run", "--help")
    assert done.code == 0
    assert "--batch-sizes N" in done.out
    assert "python -m bench run --resume NAME" in done.out


def test_tensorboard_without_traces(front: Front) -> None:
    done = front("tensorboard")
    assert done.code == 4
    assert "bench run --profile" in done.err


@pytest.mark.slow
def test_a_run_of_other_versions_is_not_continued(front: Front) -> None:
    front("run", *SMALL, "--run", "r")
    manifest = front.stored("r").manifest
    manifest["versions"]["jax"] = "0.0.1"
    store.write_manifest(front.folder / "reports/r", manifest)
    done = front("run", "--resume", "r")
    assert done.code == 4
    assert "was measured with jax 0.0.1" in done.err


def test_a_folder_that_cannot_be_written_is_found_while_planning(front: Front) -> None:
    (front.folder / "reports").write_text("a file where the folder should be")
    done = front("run", *SMALL)
    assert done.code == 4
    assert done.err.strip().endswith("reports: it is a file")
    assert len(done.err.splitlines()) == 1
    assert not front.jobs


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--meshs", "data=1"), "--meshs is not an option; did you mean --meshes?"),
        (("mlp",), "unexpected argument 'mlp'; options start with --"),
        (
            ("--implementation-path", "mine.py", "yours.py"),
            "unexpected argument 'yours.py'; name each file with its own --implementation-path",
        ),
        (("--batch-sizes", "-4"), "--batch-sizes: '-4' is not a positive whole number"),
        (("--run", "last"), "--run: 'last' stands for the newest run; choose another name"),
        (("--qqq",), "--qqq is not an option; see --help"),
        # It is an option of another command.
        (("--allow-undecided", "3"), "--allow-undecided is not an option; see --help"),
        (
            ("--run", ""),
            "--run: '' is not a folder's name: use up to 100 letters, digits, '.', '_' and '-'",
        ),
        (("--clip-norm", "0"), "--clip-norm: '0' is not a positive number"),
        (
            ("-k", "data="),
            "-k: 'data=' is not an expression of words, and, or, not, and parentheses",
        ),
        (("--implementation-path", ""), "--implementation-path: there is no file ''"),
        (("--meshes", ""), "--meshes: a value is missing"),
        (("--dry-run=yes",), "--dry-run: it takes no value, but 'yes' was given"),
        (("--maxfail", "x"), "--maxfail: invalid int value: 'x'"),
        (("-p", "none"), """Error importing plugin "none": No module named 'none'"""),
    ],
)
def test_a_mistyped_word_is_named_in_one_line(front: Front, words: tuple, fault: str) -> None:
    done = front("run", *words)
    assert done.code == 4
    assert done.err == f"error: {fault}\n"


@pytest.mark.parametrize("words", [("--resume",), ("-k",), ("--rounds", "--meshes", "data=1")])
def test_an_option_without_its_value_is_named(front: Front, words: tuple) -> None:
    done = front("run", *words)
    assert done.code == 4
    assert done.err == f"error: {words[0]}: expected one argument\n"


def test_a_resumed_run_keeps_its_selection_unless_another_is_given(front: Front) -> None:
    assert front("run", *SMALL, "--run", "r", "-k", "pmap and data=1").code == 0
    done = front("run", "--resume", "r", "--launches", "2")
    assert done.code == 0, done
    assert [(job["mesh"], job["launch"], job["implementations"]) for job in front.jobs] == [
        ("data=1", launch, ["pmap"]) for launch in (0, 1)
    ]
    assert "mlp-base/data=2" in front("run", "--resume", "r", "-k", "data=2", "--dry-run").out
    manifest = front.folder / "reports/r/manifest.json"
    there = manifest.read_bytes()
    files.write_sealed(manifest, files.unsealed(there) | {"versions": {"python": "2"}})
    elsewhere = manifest.read_bytes()
    done = front("run", "--resume", "r", "--margin", "50", "--launches", "3")
    assert done.code == 4, done
    assert "rows of different machines or versions" in done.err
    assert manifest.read_bytes() == elsewhere, "a run that is refused stays as it is"
    manifest.write_bytes(there)
    done = front("run", "--resume", "r", "-k", "nobody")
    assert done.code == 5, done
    assert "none of the 6 cells is selected" in done.out


def test_options_of_pytest_in_the_environment_do_nothing(front: Front) -> None:
    front.environment |= {"PYTEST_ADDOPTS": "-n 3 --nonsense", "PYTEST_PLUGINS": "no_such_plugin"}
    assert front("run", *SMALL, "--dry-run").code == 0


def test_a_complete_run_says_that_nothing_is_left(mixed: tuple[Front, Done]) -> None:
    front, _ = mixed
    jobs = len(front.jobs)
    done = front("run", "--resume", "last")
    assert "mixed is complete: there is nothing left to measure" in done.out
    done = front("run", "--resume", "last", "--budget", "0.001")
    assert "--budget is too short: it leaves 0 s, and another launch takes about" in done.out
    assert len(front.jobs) == jobs


@pytest.mark.slow
def test_a_failure_of_its_own_is_loud(front: Front) -> None:
    front.environment["FAKE_KILL"] = "no-number 0"
    process = front.start("run", *SMALL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Lockstep itself failed" in out + err
    assert "Traceback" in err, "here the place matters"
    assert "_pytest" not in out.replace("site-packages/_pytest", "")


def test_a_file_of_variants_is_no_file_of_arguments(monkeypatch):
    given = []
    monkeypatch.setattr(pytest, "main", lambda words, _plugins: given.extend(words) or 0)
    run_pytest(["--workloads", "mlp", "--variant", "@cpu", "--variant", "a=B=1", "-k", "x"])
    assert given[-7:] == ["--workloads", "mlp", "--variant=@cpu", "--variant", "a=B=1", "-k", "x"]
