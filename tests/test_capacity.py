"""The largest batch that fits is found, by few compilations, and what a proof came to is told."""

from __future__ import annotations

import io

import pandas as pd
import pytest
import synthetic
from rich.console import Console

from bench import numbers, store
from bench.capacity import largest, proof, rows, table
from bench.capacity.command import bytes_of
from bench.capacity.search import RESOLUTION, Search
from bench.cells import Block, Cell, StepOptions
from bench.matrix import BadInput
from bench.mesh import MeshShape
from bench.project.programs import Program, Unread
from bench.report import build, dataset, tables


def run(search, memory, most=12):
    asked = []
    while search.next is not None:
        assert search.next not in search.known
        asked.append(search.next)
        search.add(search.next, memory(search.next))
        assert len(asked) <= most, asked
    return asked


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
    search = Search(quantum, limit)
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


def test_a_line_is_followed_at_once():
    """From the smallest to the largest batch in some seven compilations, not by halving."""
    assert len(run(Search(1, 80e9), SHAPES["line"])) <= 8


def test_what_is_known_is_not_asked_again():
    search = Search(8, 16e9, {64: SHAPES["line"](64), 512: SHAPES["line"](512)})
    assert len(run(search, SHAPES["line"])) <= 3
    assert search.fits == pytest.approx((16e9 - 1e9) / 3.3e6, rel=1 / RESOLUTION)


def test_a_known_batch_is_a_multiple():
    with pytest.raises(ValueError, match=r"\[12\] are no multiples of 8"):
        Search(8, 1e9, {12: 1.0})


SIZE = 100.0
"""Bytes of a sample."""


def cell(name="a", mesh="data=2", batch=8, options="fp32,microbatches=2"):
    block = Block("mlp", "tiny", MeshShape.parse(mesh), batch, StepOptions.parse(options))
    return Cell(block, name)


def program(of, memory):
    return Program(
        implementation=of.implementation, workload="mlp", size="tiny", mesh=of.block.mesh,
        batch=of.block.batch, options=of.block.options, flops=1, accessed_bytes=1,
        memory_bytes=memory, state_bytes=1, communication=(), model_flops=1, units=1,
        unit="samples", bubble=0, read="compiled",
    )  # fmt: skip


def read(cells):
    return [
        Unread(one, "it is a loop") if one.implementation == "loop"
        else program(one, 1000 + SIZE * one.block.batch)
        for one in cells
    ]  # fmt: skip


def ran(_):
    return {"status": "ok", "reason": "", "peak_bytes": 7}


def line(*parts, known=None):
    return largest.Line(cell(*parts), known or {})


def test_lines_are_cells_but_for_their_batch():
    cells = [cell(batch=16), cell(batch=8), cell("b"), cell(mesh="data=4"), cell(options="bf16")]
    apart = [cell(options="fp32,processes=2"), cell(options="fp32,variant=x")]
    found = largest.lines_of({one: 100.0 * one.block.batch for one in [*cells, *apart]})
    assert [one.cell for one in found] == [cells[1], *cells[2:]]
    assert [one.known for one in found] == [{8: 800, 16: 1600}, *3 * [{8: 800}]]
    (bare,) = largest.lines_of({cell(): None})
    assert bare.known == {}


def test_what_the_run_has_measured_is_not_compiled():
    asked = []

    def reading(cells):
        asked.extend(one.block.batch for one in cells)
        return read(cells)

    known = {8: 1_800, 16: 2_600}
    limit = largest.Limit(41_000, "")
    (row,) = largest.largest([line(known=known)], limit, reading, ran)
    assert (row["batch"], row["compilations"]) == (400, len(asked))
    assert asked == [256, 400, 424], "16 times as many at most, then along the line"


def test_what_is_predicted_is_run():
    proved = []

    def prove(one):
        proved.append(one)
        return ran(one)

    lines = [line("a"), line("loop"), line("b", "data=4")]
    limit = largest.Limit(41_000, "as asked for")
    a, loop, b = largest.largest(lines, limit, read, prove)
    assert (a["batch"], a["predicted_bytes"], a["next_batch"]) == (400, 41_000, 424)
    assert (b["batch"], b["status"], b["peak_bytes"]) == (400, "ok", 7)
    assert proved == [
        largest.with_batch(lines[0].cell, 400),
        largest.with_batch(lines[2].cell, 400),
    ]
    assert (loop["batch"], loop["status"]) == (None, "unsupported")
    assert loop["reason"] == "not predicted: it is a loop"


def test_a_prediction_that_is_refuted_is_told_and_a_smaller_batch_tried():
    def prove(one):
        fits = one.block.batch <= 320
        return ran(one) if fits else {"status": "oom", "reason": "no room", "peak_bytes": None}

    (row,) = largest.largest([line()], largest.Limit(41_000, ""), read, prove)
    assert row["refuted"] == [400, 348]
    assert row["batch"] == 304
    assert "304, which ran; predicted was 400, which ran out of memory" in table.line(row)


def test_where_nothing_fits_nothing_is_run():
    (row,) = largest.largest([line()], largest.Limit(1_000, ""), read, lambda _: 1 / 0)
    assert (row["batch"], row["status"]) == (None, "oom")
    assert (row["next_batch"], row["next_bytes"]) == (4, 1_400)


def test_a_step_that_fails_has_its_reason_and_no_batch():
    def prove(_):
        return {"status": "crashed", "reason": "boom", "peak_bytes": None}

    (row,) = largest.largest([line()], largest.Limit(41_000, ""), read, prove)
    assert (row["batch"], row["predicted_bytes"], row["reason"]) == (None, None, "boom")


def test_rows_are_kept_and_replaced(tmp_path):
    one, other = largest.largest([line("a"), line("b")], largest.Limit(41_000, ""), read, ran)
    rows.write(tmp_path, [one, other])
    smaller = {**one, "batch": 8}
    assert rows.write(tmp_path, [smaller]) == [smaller, other]
    path = tmp_path / rows.FILE
    path.write_bytes(path.read_bytes().replace(b'"batch": 8', b'"batch": 9'))
    assert rows.read(tmp_path) == [other], "what was changed is not read"


def test_a_report_has_them(tmp_path):
    plan = synthetic.Plan(devices=(2,), rounds=4)
    run = synthetic.write(tmp_path, plan)
    lines = [line(name, "data=2", 64, "fp32") for name in ("a", "b", "loop")]

    def prove(one):
        fits = one.implementation == "a" or one.block.batch < 400
        return ran(one) if fits else {"status": "oom", "reason": "no room", "peak_bytes": None}

    found = largest.largest(lines, largest.Limit(41_000, "as asked for"), read, prove)
    # Those of the run's own workload and options.
    rows.write(run, ({**row, "workload": "mlp-base"} for row in found))
    build(store.load(run))
    csv = pd.read_csv(run / "max_batch.csv").set_index("implementation")
    assert csv["batch"].fillna(0).to_dict() == {"a": 400, "b": 350, "loop": 0}
    markdown = (run / "report.md").read_text("utf-8").replace(numbers.NARROW, " ")
    assert "A device may hold 40.0 KiB (as asked for)." in markdown
    for shown in ("| a | 400 (40.0 KiB) |", "| b | 350 (400 was predicted, and did not fit) |"):
        assert shown in markdown
    assert "not predicted: it is a loop" in markdown
    carried = dataset.build(tables.build(store.load(run)), store.read_manifest(run))["largest"]
    assert carried["batch"] == [400, 350, None]
    assert carried["refuted"] == ["", "400", ""]


def test_a_table_fits_a_terminal():
    found = largest.largest([line("a"), line("loop")], largest.Limit(41_000, "asked"), read, ran)
    text = io.StringIO()
    table.show(Console(file=text, width=80), list(found))
    assert "mlp-tiny, fp32,microbatches=2: 40.0 KiB a device, asked" in text.getvalue().replace(
        numbers.NARROW, " "
    )
    assert "400" in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "value"),
    [("16GiB", 16 * 2**30), ("80G", 80e9), ("1.5 MiB", 1.5 * 2**20), ("123", 123)],
)
def test_bytes_are_read(text, value):
    assert bytes_of(text) == value


@pytest.mark.parametrize("text", ["16 gigabytes", "0", "-1G", "", "GiB"])
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(BadInput, match="is not a number of bytes"):
        bytes_of(text)


@pytest.mark.slow
def test_a_cell_takes_its_steps_in_a_process_of_its_own():
    found = proof.prove(cell("jit_spmd", "data=2", 8, "bf16"), "cpu")
    assert found == {"status": "ok", "reason": "", "peak_bytes": None}


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
    full = proof.prove(cell("full"), "cpu", [str(tmp_path / "full.py")])
    assert (full["status"], full["reason"]) == ("oom", "RESOURCE_EXHAUSTED: no room")
    dies = proof.prove(cell("dies"), "cpu", [str(tmp_path / "dies.py")])
    assert dies["status"] in {"crashed", "oom"}, "oom where nobody counts the kernel's kills"
    assert "was killed by SIGKILL" in dies["reason"]
