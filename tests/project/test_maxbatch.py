"""The largest batch that fits is found, by few compilations, and what a proof came to is told."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic
from fakes.catalogue import catalogue
from pages import column
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from bench.__main__ import app
from bench.analyse import cell_table
from bench.commands import exits
from bench.commands.maxbatch import bytes_of
from bench.commands.shared_options import load_run
from bench.plan.content_keys import Contents
from bench.plan.option_values import BadInput
from bench.present import page_data, run_tables
from bench.present.report_files import build
from bench.project import compiled_programs
from bench.project import largest_fit as largest
from bench.project.compiled_programs import NoProgram, Program
from bench.project.largest_fit import RESOLUTION, Search, limit_of
from bench.records import largest_batches, numbers, store
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape


def run(search, memory, most=12):
    asked = []
    while search.next is not None:
        batch = search.next
        assert batch not in search.known
        asked.append(batch)
        search.known[batch] = memory(batch)
        assert len(asked) <= most, asked
    return asked


def searched(quantum, limit, known=()):
    block = Block("mlp", "tiny", MeshShape.parse("data=1"), 1, StepOptions(microbatches=quantum))
    return Search(Cell(block, "a"), largest.Limit(limit, ""), known=dict(known))


SHAPES = {
    "line": lambda batch: 1e9 + 3.3e6 * batch,
    "steps": lambda batch: 1e9 + 3.3e6 * (batch // 64 * 64),
    "bend": lambda batch: 1e9 + 3.3e6 * max(0, batch - 512) + 1e5 * batch,
    "squares": lambda batch: 1e6 + 1e4 * batch**2,
    "constant": lambda batch: 4e9 if batch <= 4096 else 1e12,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("quantum", [1, 3, 8, 64])
@pytest.mark.parametrize("limit", [1.3e9, 16e9, 80e9])
def test_the_largest_is_found_to_a_sixteenth(shape, quantum, limit):
    memory = SHAPES[shape]
    search = searched(quantum, limit)
    asked = run(search, memory)
    assert all(batch % quantum == 0 for batch in asked)
    if memory(quantum) > limit:
        assert search.fits is None
        assert asked == [quantum]
        return
    assert memory(search.fits) <= limit
    above = search.fits + max(quantum, search.fits // RESOLUTION)
    assert memory(above) > limit
    assert search.fits < search.too_large <= above


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [5e9, 16e9, 80e9])
def test_a_compiler_that_refuses_what_is_too_large_is_enough(shape, limit):
    search = searched(8, limit)
    size = SHAPES[shape]
    run(search, lambda batch: size(batch) if size(batch) <= limit else math.inf, most=16)
    assert search.fits is not None
    assert size(search.fits) <= limit < size(search.too_large)
    assert search.too_large - search.fits <= max(8, search.fits / 16)


def test_a_line_is_followed_at_once():
    """From the smallest to the largest batch in some seven compilations, not by halving."""
    assert len(run(searched(1, 80e9), SHAPES["line"])) <= 8


def test_what_is_known_is_not_asked_again():
    search = searched(8, 16e9, {64: SHAPES["line"](64), 512: SHAPES["line"](512)})
    assert len(run(search, SHAPES["line"])) <= 3
    assert search.fits == pytest.approx((16e9 - 1e9) / 3.3e6, rel=1 / RESOLUTION)


SIZE = 100.0
"""Bytes of a sample."""


def cell(name="a", mesh="data=2", batch=8, options="fp32,microbatches=2"):
    block = Block("mlp", "tiny", MeshShape.parse(mesh), batch, StepOptions.parse(options))
    return Cell(block, name)


def program(of, memory):
    return Program(
        cell=of, flops=1, memory_bytes=memory, state_bytes=1, communication=(),
        model_flops=1, units=1, unit="samples", read="compiled",
    )  # fmt: skip


def read(cells):
    return [
        NoProgram(one, "it is a loop") if one.implementation == "loop"
        else program(one, 1000 + SIZE * one.block.batch)
        for one in cells
    ]  # fmt: skip


def ran(_):
    return {"status": "ok", "reason": "", "peak_bytes": 7}


def search(*parts, known=None, limit=41_000, words="requested"):
    return Search(cell(*parts), largest.Limit(limit, words), known=known or {})


def stored_row(of):
    figures = {"memory": {"total_bytes": 100 * of.block.batch}, "key": of.name}
    return {"implementation": of.implementation, **of.block.fields, **figures}


def searches_of(rows):
    contents = SimpleNamespace(key=lambda one: one.name)
    return largest.searches_of_run(rows, contents, largest.Limit(41_000, ""))


def test_lines_are_cells_but_for_their_batch():
    cells = [cell(batch=16), cell(batch=8), cell("b"), cell(mesh="data=4"), cell(options="bf16")]
    apart = [cell(options="fp32,processes=2"), cell(options="fp32,variant=x")]
    found = searches_of([stored_row(one) for one in [*cells, *apart]])
    assert [one.cell for one in found] == [cells[1], *cells[2:]]
    assert [one.known for one in found] == [{8: 800, 16: 1600}, *3 * [{8: 800}]]
    assert len({one.contents for one in found}) == 4
    for change in ({"memory": None}, {"key": "of another file"}):
        (bare,) = searches_of([{**stored_row(cell()), **change}])
        assert bare.known == {}
        assert bare.contents == found[0].contents, "whatever the batch"


def test_what_the_run_has_measured_is_not_compiled():
    asked = []

    def reading(cells):
        asked.extend(one.block.batch for one in cells)
        return read(cells)

    known = {8: 1_800, 16: 2_600}
    (row,) = largest.largest([search(known=known)], reading, ran)
    assert (row["batch"], row["compilations"]) == (400, len(asked))
    assert asked == [256, 400, 424], "16 times as many at most, then along the line"


def test_what_is_predicted_is_run():
    proved = []

    def prove(one):
        proved.append(one)
        return ran(one)

    searches = [search("a"), search("loop"), search("b", "data=4")]
    loop, a, b = largest.largest(searches, read, prove)
    assert (a["batch"], a["predicted_bytes"], a["next_batch"]) == (400, 41_000, 424)
    assert (b["batch"], b["status"], b["peak_bytes"]) == (400, "ok", 7)
    assert proved == [
        largest.with_batch(searches[0].cell, 400),
        largest.with_batch(searches[2].cell, 400),
    ]
    assert (loop["batch"], loop["status"]) == (None, "not predicted")
    assert loop["reason"] == "it is a loop"


def test_what_is_found_is_told_before_the_search_for_others_ends():
    # Of `b` the run knows all that there is to search, and of `a` nothing.
    known = {8: 1_800, 16: 2_600, 400: 41_000, 424: 43_400}
    searches = [search("a"), search("b", known=known)]
    asked = []

    def reading(cells):
        asked.append([one.implementation for one in cells])
        return read(cells)

    found = largest.largest(searches, reading, ran)
    assert next(found)["implementation"] == "b"
    assert not asked
    assert [row["implementation"] for row in found] == ["a"]


def test_a_prediction_that_is_refuted_is_told_and_a_smaller_batch_tried():
    def prove(one):
        fits = one.block.batch <= 320
        return ran(one) if fits else {"status": "oom", "reason": "no room", "peak_bytes": None}

    (row,) = largest.largest([search()], read, prove)
    assert row["refuted"] == [400, 348]
    assert (row["batch"], row["next_batch"]) == (304, 348)
    said = run_tables.largest_line(row)
    assert said.endswith("304, which ran; 400 and 348 were predicted to fit, but ran out of memory")


@pytest.mark.parametrize(("known", "most"), [({8: 1_800, 16: 2_600}, 6), ({}, 9)])
def test_a_compiler_that_runs_out_of_memory_has_said_that_a_batch_is_too_large(known, most):
    def refusing(cells):
        return [
            one if one.memory_bytes <= 41_000 else NoProgram(one.cell, "out of hbm", "oom")
            for one in read(cells)
        ]

    (row,) = largest.largest([search(known=known, limit=42_000)], refusing, ran)
    assert row["status"] == "ok"
    assert 384 <= row["batch"] <= 400 < row["next_batch"]
    assert row["next_bytes"] is None
    assert row["compilations"] <= most


def test_where_nothing_fits_nothing_is_run():
    (row,) = largest.largest([search(limit=1_000)], read, lambda _: 1 / 0)
    assert (row["batch"], row["status"]) == (None, "predicted oom")
    assert (row["next_batch"], row["next_bytes"]) == (4, 1_400)
    assert run_tables.largest_line(row).endswith(
        "the smallest batch, 4, is predicted to exceed the limit, so it was not run"
    )


def test_where_everything_is_refuted_it_has_happened():
    def prove(_):
        return {"status": "oom", "reason": "no room", "peak_bytes": None}

    (row,) = largest.largest([search()], read, prove)
    assert (row["batch"], row["status"], row["reason"]) == (None, "oom", "no room")
    assert row["refuted"] == [400, 348, 304, 264]


def test_a_step_that_fails_has_its_reason_and_no_batch():
    def prove(_):
        return {"status": "crashed", "reason": "boom", "peak_bytes": None}

    (row,) = largest.largest([search()], read, prove)
    assert (row["batch"], row["predicted_bytes"], row["reason"]) == (None, None, "boom")


def test_rows_are_kept_and_replaced(tmp_path):
    one, other = largest.largest([search("a"), search("b")], read, ran)
    largest_batches.write(tmp_path, [one, other])
    smaller = {**one, "batch": 8}
    largest_batches.write(tmp_path, [smaller])
    assert largest_batches.read(tmp_path) == [smaller, other]
    path = tmp_path / largest_batches.FILE
    path.write_bytes(path.read_bytes().replace(b'"batch": 8', b'"batch": 9'))
    assert largest_batches.read(tmp_path) == [other], "what was changed is not read"
    assert largest_batches.damage(tmp_path) == [
        "max_batch.jsonl, line 1: differs from what was stored (CRC-32)"
    ]


def test_rows_of_another_limit_stay(tmp_path):
    (one,) = largest.largest([search()], read, ran)
    (none,) = largest.largest([search(limit=12)], read, ran)
    largest_batches.write(tmp_path, [one])
    largest_batches.write(tmp_path, [none])
    assert largest_batches.read(tmp_path) == [none, one]


def test_damage_is_reported_and_each_row_has_its_limit(tmp_path, capsys):
    run = synthetic.write(tmp_path, synthetic.Plan(devices=(2,), rounds=4))
    searches = [search("a", "data=2", 64, "fp32", limit=size) for size in (40_960, 81_920)]
    each = largest.largest(searches, read, ran)
    largest_batches.write(run, ({**row, "workload": "mlp-base"} for row in each))
    found = load_run(str(run))
    assert not capsys.readouterr().err
    build(found, all_plots=False)
    markdown = (run / "report.md").read_text("utf-8").replace(numbers.NARROW, " ")
    assert "| 40.0 KiB (requested) |" in markdown
    assert "| 80.0 KiB (requested) |" in markdown
    path = run / largest_batches.FILE
    path.write_bytes(path.read_bytes()[:-9])
    assert cell_table.build(load_run(str(run))).damaged
    assert "set aside: max_batch.jsonl, line 2: differs" in capsys.readouterr().err


def test_a_report_has_them(tmp_path):
    plan = synthetic.Plan(devices=(2,), rounds=4)
    run = synthetic.write(tmp_path, plan)
    searches = [search(name, "data=2", 64, "fp32") for name in ("a", "b", "big", "loop")]

    def reading(cells):
        big = [one for one in cells if one.implementation == "big"]
        return [program(one, 1e9) if one in big else read([one])[0] for one in cells]

    def prove(one):
        fits = one.implementation == "a" or one.block.batch < 400
        return ran(one) if fits else {"status": "oom", "reason": "no room", "peak_bytes": None}

    found = largest.largest(searches, reading, prove)
    # Those of the run's own workload and options.
    largest_batches.write(run, ({**row, "workload": "mlp-base"} for row in found))
    build(store.load(run))
    csv = pd.read_csv(run / "max_batch.csv").set_index("implementation")
    assert csv["batch"].fillna(0).to_dict() == {"a": 400, "b": 350, "big": 0, "loop": 0}
    assert csv["status"].to_dict() == {
        "a": "ok", "b": "ok", "big": "predicted oom", "loop": "not predicted"
    }  # fmt: skip
    markdown = (run / "report.md").read_text("utf-8").replace(numbers.NARROW, " ")
    assert "| 40.0 KiB (requested) |" in markdown
    refuted = "400 was predicted to fit, but ran out of memory"
    for shown in ("| a | data=2 | 400 | ok | 40.0 KiB |", f"| b | data=2 | 350 ({refuted}) | ok |"):
        assert shown in markdown
    assert "not predicted (it is a loop)" in markdown
    planned = "the smallest batch, 2, is predicted to exceed the limit, so it was not run"
    assert f"| predicted oom ({planned}) |" in markdown
    carried = page_data.build(cell_table.build(store.load(run)), store.read_manifest(run))
    assert column(carried, "max_batch", "batch") == [400, 350, None, None]
    refuted = column(carried, "max_batch", "batch", "details")
    assert [text.partition(" ")[0] for text in refuted] == ["", "400", "", ""]


def test_batches_that_were_refuted_are_listed():
    (row,) = largest.largest([search("a")], read, ran)
    line = run_tables.largest_line({**row, "batch": 304, "refuted": [400, 348, 320]})
    said = "400, 348 and 320 were predicted to fit, but ran out of memory"
    assert line.endswith(f": 304, which ran; {said}")


def test_a_table_fits_a_terminal():
    found = largest.largest([search("a", words="asked"), search("loop", words="asked")], read, ran)
    text = io.StringIO()
    run_tables.show_largest(Console(file=text, width=80), list(found))
    assert "mlp-tiny, fp32,microbatches=2: 40.0 KiB per device, asked" in text.getvalue().replace(
        numbers.NARROW, " "
    )
    assert "400" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "value"),
    [("16GiB", 16 * 2**30), ("80G", 80e9), ("1.5 MiB", 1.5 * 2**20)],
)
def test_bytes_are_read(text, value):
    assert bytes_of(text) == value


@pytest.mark.parametrize(
    "text", ["16 gigabytes", "-1G", "", "GiB", "256", "16gib", "0G", "0.0 GiB", "9" * 320 + "G"]
)
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(BadInput, match="is not a number above 0, of up to 15 digits, and a unit"):
        bytes_of(text)


def test_an_accelerator_has_a_limit_and_others_have_to_be_given_one():
    gpu = {**catalogue("gpu"), "device_memory_bytes": 80_000}
    assert limit_of(gpu, None) == largest.Limit(80_000, "the memory available on the device")
    assert limit_of(gpu, 16.0) == largest.Limit(16, "requested")
    assert limit_of(catalogue("cpu"), 16.0) == largest.Limit(16, "requested")
    with pytest.raises(BadInput, match="--memory 2GiB: gpu devices do not report how much"):
        limit_of(catalogue("gpu"), None)


TOLD = [
    "0/3 data=2: compiling 2 cells, batch 4, 8",
    "0/3 running mlp-tiny/data=2/b4/fp32,microbatches=2/b",
    "1/3 data=2: compiling 1 cell, batch 8",
    "1/3 running mlp-tiny/data=2/b4/fp32,microbatches=2/a",
    "2/3 data=4: compiling 1 cell, batch 8",
]


@pytest.fixture
def show(monkeypatch):
    """Searches three lines, of which the last one has no batch that fits."""
    monkeypatch.setattr(compiled_programs, "programs", lambda cells, *_, here: read(cells))
    monkeypatch.setattr(largest, "prove_fit", lambda one, *_: ran(one))

    def shown(console):
        searches = [
            search("a", limit=1_500),
            search("b", limit=1_500, known={4: 1_400}),
            search("a", "data=4", limit=1_500),
        ]
        return list(largest.search_here(searches, {}, console))

    return shown


def test_every_step_is_a_line_where_there_is_no_terminal(show):
    console = Console(file=io.StringIO(), width=20, force_terminal=True, highlight=False)
    show(console)
    assert console.file.getvalue().splitlines() == TOLD


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [30, 100])
def test_a_terminal_shows_every_step_in_one_line(width, show, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    console = Console(file=Terminal(), width=width, force_terminal=True)
    show(console)
    frames = [line for line in Text.from_ansi(console.file.getvalue()).plain.splitlines() if line]
    for told in TOLD:
        assert any(told[: width - 15] in frame for frame in frames), frames
    assert all("/3 data=" in frame or "/3 running" in frame for frame in frames), "none is wrapped"
    assert max(map(len, frames)) <= width


LIMIT = "41k"
HERE = {"platform": "cpu", "implementation_paths": [], "workload_paths": []}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Runs `maxbatch` on a stored run of `a`, `b` and `loop`, whose steps are planted.

    What was compiled and run since is in `stored.compiled` and `stored.proved`.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py", "loop.py", "mlp.py"):
        (tmp_path / name).write_text(f"name = '{name}'\n")
    ratios = {"a": 1.0, "b": 2.0, "loop": 3.0}
    folder = synthetic.write(tmp_path / "reports", synthetic.Plan(devices=(2,), ratios=ratios))
    synthetic.rewrite(folder, "cells", lambda row: row.update(memory=None))
    there = {
        **catalogue(),
        "implementations": [{"name": name, "path": f"{name}.py"} for name in ratios],
        "workloads": [{"name": "mlp", "path": "mlp.py"}],
    }

    class Stored:
        path = folder
        contents = Contents(there)
        compiled, proved = [], []
        fails_at = ""

        def call(self, *options):
            self.compiled.clear()
            self.proved.clear()
            return CliRunner().invoke(app, ["maxbatch", "synthetic", *options])

        def prove(self, one, *_):
            if one.implementation == self.fails_at:
                raise KeyboardInterrupt
            self.proved.append(one.implementation)
            return ran(one)

        def read(self, cells, *_, here):
            assert here, "by this machine's own compiler"
            self.compiled.extend(one.implementation for one in cells)
            return read(cells)

    planted = Stored()
    monkeypatch.setattr("bench.commands.maxbatch.read_catalogue", lambda *_: there)
    monkeypatch.setattr("bench.project.compiled_programs.programs", planted.read)
    monkeypatch.setattr("bench.project.largest_fit.prove_fit", planted.prove)
    return planted


def test_on_cpu_the_limit_has_to_be_named(stored):
    ended = stored.call()
    assert ended.exit_code == exits.BAD_INPUT
    assert ended.stderr == (
        "error: --memory: name the memory limit of one device, as --memory 2GiB: cpu devices do "
        "not report how much a program may use\n"
    )
    assert not stored.compiled


def test_all_faults_are_told_at_once(stored):
    ended = stored.call("-k", "(", "--memory", "much", "--workload-path", "no.py")
    assert ended.exit_code == exits.BAD_INPUT
    for said in ("-k: '(' is not an expression", "--memory: 'much' is not a number", "no.py"):
        assert said in ended.stderr
    assert not stored.compiled


def test_a_selection_of_nothing_is_refused(stored):
    ended = stored.call("-k", "nothing", "--memory", LIMIT)
    assert ended.exit_code == exits.BAD_INPUT
    said = "error: synthetic: no selected cell is ok and runs in a single process\n"
    assert ended.stderr == said


def test_what_is_found_is_stored_at_once_and_a_second_call_goes_on(stored):
    stored.fails_at = "b"
    ended = stored.call("--memory", LIMIT)
    assert ended.exit_code == exits.INTERRUPTED
    assert (
        "interrupted: 2 of 3 cells stored; the same command without --again continues"
        in ended.stderr
    )
    kept = largest_batches.read(stored.path)
    assert [(row["implementation"], row["status"]) for row in kept] == [
        ("a", "ok"),
        ("loop", "not predicted"),
    ]

    stored.fails_at = ""
    ended = stored.call("--memory", LIMIT)
    assert ended.exit_code == 0, ended.output
    assert "1 of 3 cells kept from before; --again searches them again" in ended.stdout
    assert set(stored.compiled) == {"b", "loop"}, "what could not be predicted may be now"
    assert stored.proved == ["b"]
    assert ended.stderr.startswith("0/2 data=2: compiling 2 cells, batch 2\n1/2 data=2: ")
    a, b, loop = largest_batches.read(stored.path)
    assert [a, loop] == kept
    assert (b["implementation"], b["batch"]) == ("b", 400)
    shown = ended.stdout.splitlines()
    assert [text.split()[0] for text in shown if " data=2 " in text] == ["a", "b", "loop"]


def test_what_has_changed_is_searched_again(stored, monkeypatch):
    selected = ("-k", "not loop")
    assert stored.call(*selected, "--memory", LIMIT).exit_code == 0
    assert stored.proved == ["a", "b"]
    stored.call(*selected, "--memory", LIMIT)
    assert not stored.compiled
    assert not stored.proved

    (stored.path.parents[1] / "a.py").write_text("name = 'another'\n")
    stored.call(*selected, "--memory", LIMIT)
    assert stored.proved == ["a"], "its file has changed"
    stored.call(*selected, "--memory", "42k")
    assert stored.proved == ["a", "b"], "the limit has changed"
    for value in (1, 2):
        # Records leave out values with a path in them.
        monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/nowhere --xla_other={value}")
        stored.call(*selected, "--memory", "42k")
        assert stored.proved == ["a", "b"], "a variable that changes what is compiled has changed"
    ended = stored.call(*selected, "--memory", "42k", "--again")
    assert stored.proved == ["a", "b"]
    assert "kept" not in ended.output


@pytest.mark.parametrize(("same", "batch"), [(True, 62), (False, 400)])
def test_what_the_run_has_read_counts_where_nothing_has_changed(stored, same, batch):
    def planned(row):
        key = stored.contents.key(Cell.of(row))
        row.update(memory={"total_bytes": 1e9}, key=key if same else "of another machine")

    synthetic.rewrite(stored.path, "cells", planned)
    assert stored.call("-k", "not loop", "--memory", LIMIT).exit_code == 0
    assert [row["batch"] for row in largest_batches.read(stored.path)] == [batch, batch]


def test_that_nothing_is_predicted_to_fit_is_kept_as_well(stored):
    for _ in range(2):
        ended = stored.call("-k", "not loop", "--memory", "1k")
        assert not stored.proved
    assert not stored.compiled
    assert "2 of 2 cells kept" in ended.stdout
    assert ended.stdout.count("predicted oom") == 2


def test_what_fails_is_tried_again(stored, monkeypatch):
    failed = {"status": "crashed", "reason": "boom", "peak_bytes": None}
    with monkeypatch.context() as planted:
        planted.setattr(largest, "prove_fit", lambda *_: failed)
        stored.call("-k", "not loop", "--memory", LIMIT)
    assert {row["status"] for row in largest_batches.read(stored.path)} == {"crashed"}
    stored.call("-k", "not loop", "--memory", LIMIT)
    assert stored.proved == ["a", "b"]


def test_without_its_file_a_cell_is_searched_and_not_kept(stored):
    (stored.path.parents[1] / "a.py").unlink()
    for _ in range(2):
        assert stored.call("-k", "not loop", "--memory", LIMIT).exit_code == 0
    assert stored.proved == ["a"]


@pytest.mark.parametrize(
    ("answer", "kernel_kills", "status", "reason"),
    [
        ({"code": None}, None, "timeout", "no answer in 900 s"),
        ({"ending": "was killed by SIGKILL"}, True, "oom", "its process was killed by SIGKILL"),
        ({"ending": "was killed by SIGKILL"}, None, "oom", "its process was killed by SIGKILL"),
        ({"ending": "was killed by SIGKILL"}, False, "crashed", "its process is to blame"),
        ({"tail": ["what():", "std::bad_alloc"]}, False, "oom", "its process ended with code 1"),
        ({"tail": ["LLVM ERROR: out of memory"]}, False, "oom", "its process ended with code 1"),
        ({"ending": "ended with code 1"}, True, "crashed", "its process is to blame"),
    ],
)
def test_a_process_that_gives_no_answer_ran_out_of_memory_only_if_something_says_so(
    monkeypatch, answer, kernel_kills, status, reason
):
    ended = {"code": 1, "ending": "ended with code 1", "tail": [], "blame": "is to blame"} | answer
    monkeypatch.setattr(largest, "ask", lambda *_: SimpleNamespace(**ended))
    counters = {"killed_by_kernel": lambda *_: kernel_kills, "count_kills": int}
    monkeypatch.setattr(largest, "oom_kills", SimpleNamespace(**counters))
    found = largest.prove_fit(cell("own"), HERE)
    assert found == {"status": status, "reason": reason, "peak_bytes": None}


@pytest.mark.slow
def test_a_cell_takes_its_steps_in_a_process_of_its_own():
    found = largest.prove_fit(cell("jit_spmd", "data=2", 8, "bf16"), HERE)
    assert found == {"status": "ok", "reason": "", "peak_bytes": None}


@pytest.mark.slow
def test_how_a_step_ends_is_told(tmp_path):
    (tmp_path / "dies.py").write_text(
        "import os\n"
        "def why_unsupported(problem, mesh): return None\n"
        "def build(problem, mesh): os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "full.py").write_text(
        "def why_unsupported(problem, mesh): return None\n"
        "def build(problem, mesh): raise RuntimeError('RESOURCE_EXHAUSTED: no room')\n"
    )
    files = [str(tmp_path / f"{name}.py") for name in ("full", "dies")]
    there = HERE | {"implementation_paths": files}
    full = largest.prove_fit(cell("full"), there)
    assert (full["status"], full["reason"]) == ("oom", "RESOURCE_EXHAUSTED: no room")
    dies = largest.prove_fit(cell("dies"), there)
    assert dies["status"] in {"crashed", "oom"}, "oom where nobody counts the kernel's kills"
    assert "was killed by SIGKILL" in dies["reason"]
