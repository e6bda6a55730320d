"""Plots drawn in a process of their own: the same files, and errors that reach the caller."""

from __future__ import annotations

import json

import pytest

from bench.present.plots import drawing_process
from bench.present.plots.drawing_process import drawing
from bench.present.plots.vega_plot import Plot

SPEC = {
    "data": {"values": [{"x": 1, "y": 2}, {"x": 2, "y": 1}]},
    "mark": "line",
    "encoding": {axis: {"field": axis, "type": "quantitative"} for axis in "xy"},
}


def plot(slug):
    return Plot(slug, json.dumps(SPEC))


@pytest.fixture(autouse=True)
def one_plot_is_many(monkeypatch):
    monkeypatch.setattr(drawing_process, "FEW", 0)


@pytest.mark.parametrize("few", [0, 2])
def test_plots_are_written_while_the_caller_works(tmp_path, monkeypatch, few):
    monkeypatch.setattr(drawing_process, "FEW", few)
    (tmp_path / "other").mkdir()
    with drawing([(plot("one"), tmp_path), (plot("two"), tmp_path / "other")]):
        pass
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == sorted(
        f"{slug}.{suffix}" for slug in ("one", "two") for suffix in ("svg", "pdf", "png")
    )
    assert (tmp_path / "one.svg").read_text() == plot("one").svg
    assert (tmp_path / "one.png").read_bytes() == plot("one").png


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"missing.*one\.pdf"),
        drawing([(plot("one"), tmp_path / "missing")]),
    ):
        pass


def test_other_errors_end_the_report(tmp_path, capfd):
    with (
        pytest.raises(RuntimeError, match="drawing plots ended with exit code 1"),
        drawing([(Plot("one", "no JSON"), tmp_path)]),
    ):
        pass
    assert "Traceback" in capfd.readouterr().err


def test_the_callers_own_error_is_raised_and_ends_the_drawing(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        drawing([(plot(f"plot{number}"), tmp_path) for number in range(200)]),
    ):
        raise ZeroDivisionError
    assert len([*tmp_path.iterdir()]) < 3 * 200
