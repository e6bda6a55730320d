"""Where a cell's arrays lie is told as it is, and bad names are refused with what is allowed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bench.__main__ import app
from bench.commands.exits import BAD_INPUT
from bench.measure.catalogue import read_layout
from bench.present.layout_drawing import show

CELL = "gpt2-tiny/data=2,model=2/b8/fp32,microbatches=2/tensor_parallel_spmd"


@pytest.fixture(scope="module")
def found():
    return read_layout(CELL)


def shown(found):
    text = io.StringIO()
    show(Console(file=text, width=100), found)
    return text.getvalue()


def test_every_parameter_is_told_with_its_parts(found):
    arrays = {array["path"]: array for array in found["parameters"]}
    up = arrays["blocks/0/up/kernel"]
    assert (up["shape"], up["dtype"], up["bytes"], up["device_bytes"]) == (
        [16, 64], "float32", 4096, 2048,
    )  # fmt: skip
    assert up["parts"] == [
        {"index": [[0, 16], [0, 32]], "devices": [0, 2]},
        {"index": [[0, 16], [32, 64]], "devices": [1, 3]},
    ]
    assert len(arrays["norm/scale"]["parts"]) == 1
    assert found["devices"] == [[0, 1], [2, 3]]


def test_totals_are_those_of_the_parts(found):
    each = sum(array["device_bytes"] for array in found["parameters"])
    assert set(found["device_bytes"]["parameters"].values()) == {each}
    # AdamW keeps two numbers a parameter, and counts steps.
    state = set(found["device_bytes"]["state"].values())
    assert len(state) == 1
    assert 0 <= state.pop() - 3 * each <= 64
    assert set(found["device_bytes"]["batch"].values()) == {4 * 17 * 4}


@pytest.mark.slow
def test_a_pipelines_stages_are_told_as_they_are_held():
    name = "gpt2-deep/data=1,pipe=2/b8/fp32,microbatches=2/pipeline_gpipe"
    found = read_layout(name)
    blocks = [array for array in found["parameters"] if array["path"].startswith("blocks/")]
    assert blocks
    assert {len(array["parts"]) for array in blocks} == {2}
    for device, size in found["device_bytes"]["parameters"].items():
        assert size == sum(array["device_bytes"] for array in found["parameters"])
        assert found["device_bytes"]["state"][device] == pytest.approx(3 * size, abs=64)


def test_it_is_drawn(found):
    text = shown(found)
    assert "Mesh data=2, model=2: device ids, model across" in text
    (line,) = (line for line in text.splitlines() if line.startswith("blocks/0/up/kernel"))
    times = "\N{MULTIPLICATION SIGN}"
    assert line.split()[1:5] == [f"16{times}64", "float32", f"1{times}2", "2"]
    assert "together" in text


@pytest.mark.slow
def test_what_is_unsupported_says_why():
    name = "linear-tiny/data=2,model=2/b8/fp32,variant=x,processes=2/tensor_parallel_spmd"
    text = shown(read_layout(name))
    assert "unsupported: the model has no dimension named mlp or heads" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("nonsense", "'nonsense' is not a cell; cells are named like gpt2-nano/"),
        ("mlp-tiny/data=2/b8/fp32,fast/jit_spmd", "'fast' is unknown; write PRECISION"),
        ("mlp-tiny/data=2/b8/fp32/exact", "names a class of implementations: name one of them"),
        ("mlp-tiny/date=2/b8/fp32/jit_spmd", "unknown axis 'date'"),
        ("mpl-tiny/data=2/b8/fp32/jit_spmd", ": unknown 'mpl-tiny'; did you "),
        ("mlp-tiny/data=2/b8/fp32/jit_spdm", ": unknown 'jit_spdm'; did "),
        ("mlp-tiny/data/b8/fp32/jit_spmd", ": mesh 'data': axis 'data' needs a "),
        ("mlp-tiny/data=2/b8/fp23/jit_spmd", ": unknown 'fp23'; did you mean"),
        ("mlp-tiny/data=2/bx/fp32/jit_spmd", ": 'x' is not a positive whole"),
        ("mlp-tiny/data=2/b9/fp32/jit_spmd", ": 9 cannot be split over the 2 "),
    ],
)
def test_a_name_that_is_no_cells_is_refused(cell, message):
    done = CliRunner().invoke(app, ["inspect", cell])
    assert done.exit_code == BAD_INPUT
    assert message in done.output
    assert "--" not in done.output


@pytest.mark.slow
def test_a_file_that_cannot_be_built_is_blamed_in_a_line(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        '"""Mine."""\ndef why_unsupported(problem, mesh): ...\ndef build(*_):\n    no\n'
    )
    words = ["inspect", "mlp-tiny/data=1/b8/fp32/mine", "--implementation-path", str(mine)]
    done = CliRunner().invoke(app, words)
    assert done.output.endswith("\n  NameError: name 'no' is not defined (mine.py:4)\n")
    assert done.output.count("\n") == 2
