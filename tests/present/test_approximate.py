"""Approximate steps are ranked separately, and marked wherever implementations are listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
import synthetic
from rich.console import Console

from bench.analyse import cell_table, loss_curves
from bench.present import (
    caveats,
    cell_columns,
    closing_summary,
    page_data,
    placing_table,
    report_files,
    sentences,
)
from bench.present.columns import Table
from bench.records import store

if TYPE_CHECKING:
    from pathlib import Path

    from bench.analyse.cell_table import Tables

PLAN = synthetic.Plan(
    devices=(1, 2),
    ratios={"jit_spmd": 1.0, "fast": 0.8, "sparse": 0.5, "coarse": 0.7},
    approximate=frozenset({"sparse", "coarse"}),
    trained=60,
    drifts={"sparse": 1e-2},
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> store.Run:
    return store.load(synthetic.write(tmp_path_factory.mktemp("reports"), PLAN))


@pytest.fixture(scope="module")
def found(run: store.Run) -> Tables:
    return cell_table.build(run)


def test_exact_steps_alone_lead_and_approximate_ones_have_an_order_of_their_own(
    found: Tables,
) -> None:
    for block in found.comparisons:
        assert block.standings.leaders == ("fast",)
        assert block.standings.behind.keys() == {"jit_spmd", "fast"}
        assert [c["implementation"] for c in block.ranked] == [
            "fast", "jit_spmd", "sparse", "coarse",
        ]  # fmt: skip
        assert block.claims["sparse"].verdict.word == "faster", "than the baseline"
    cells = found.cells.set_index("implementation")
    assert cells.loc["sparse", "tier"].isna().all()
    assert (cells.loc["sparse", "ratio"] < 0.6).all()


def test_the_answer_is_an_exact_step(found: Tables) -> None:
    for text in (
        sentences.headline(sentences.summaries(found)),
        *(each.text() for each in sentences.summaries(found)),
    ):
        answer, _, apart = text.partition(
            " Approximate steps are ranked separately. Times relative to "
        )
        assert "sparse" not in answer
        assert "coarse" not in answer
        assert "fast" in answer
        assert apart.startswith("jit_spmd: sparse 0.")
        assert apart.index("sparse") < apart.index("coarse")
    assert sentences.decisions(found.rows) == "Against the baselines: 2 faster."


def test_without_another_exact_step_there_is_still_an_order(tmp_path: Path) -> None:
    plan = synthetic.Plan(
        devices=(2,), ratios={"jit_spmd": 1.0, "sparse": 0.5}, approximate=frozenset({"sparse"})
    )
    (text,) = sentences.advice(
        sentences.summaries(cell_table.build(store.load(synthetic.write(tmp_path, plan))))
    )
    assert text.startswith(
        "Approximate steps are ranked separately. Times relative to jit_spmd: sparse"
    )


def test_without_another_exact_step_on_any_mesh_the_order_is_said_once(tmp_path: Path) -> None:
    plan = synthetic.Plan(
        devices=(1, 2), ratios={"jit_spmd": 1.0, "sparse": 0.5}, approximate=frozenset({"sparse"})
    )
    (text,) = sentences.advice(
        sentences.summaries(cell_table.build(store.load(synthetic.write(tmp_path, plan))))
    )
    assert text.count("jit_spmd: sparse") == 1


def test_the_matrix_sets_them_beside_the_fastest_exact_step(found: Tables) -> None:
    matrix = placing_table.make(found)
    assert matrix is not None
    names = [line.name for line in matrix.lines]
    assert names == ["fast", "jit_spmd", "sparse (approximate)", "coarse (approximate)"]
    field = matrix.lines[2].fields[0]
    assert field is not None
    assert (field.text, field.look) == ("\N{MINUS SIGN}38\N{NARROW NO-BREAK SPACE}%", "apart")
    assert field.sure.startswith("approximate, ")
    assert placing_table.APART in matrix.note


def test_every_list_marks_them(run: store.Run, found: Tables) -> None:
    cells = cell_columns.rows(found, run.manifest)
    table = Table("All cells", cell_columns.COLUMNS, list(cells.values()))
    notes = {name.main: name.note for name, *_ in table.body}
    assert notes["sparse"] == "approximate"
    assert notes["fast"] == ""
    assert any("sparse rounds" in figure.main for line in table.body for figure in line)
    page = page_data.build(found, run.manifest)
    assert [page["implementations"][arm] for arm in page["approximate"]] == ["coarse", "sparse"]
    said = caveats.caveats(found, run.manifest)
    assert "sparse (sparse rounds)" in said["Approximate steps"]
    console = Console(width=200, record=True)
    closing_summary.print_summary(console, run, found)
    assert "Approximate steps are ranked separately" in console.export_text()


def test_only_a_proved_step_is_said_to_be_proved(tmp_path: Path) -> None:
    def not_proved(row: dict[str, Any]) -> None:
        if row["implementation"] == "coarse":
            row.update(status="wrong", reason="it does not train")

    directory = synthetic.write(tmp_path, PLAN)
    synthetic.rewrite(directory, "cells", not_proved)
    run = store.load(directory)
    said = caveats.caveats(cell_table.build(run), run.manifest)["Approximate steps"]
    assert "sparse (sparse rounds)" in said
    assert "coarse" not in said


def test_their_losses_need_not_follow_the_references(found: Tables) -> None:
    for training in loss_curves.find(found):
        assert [curve.arm for curve in training.curves] == ["coarse", "fast", "jit_spmd", "sparse"]
        assert training.parted == []


def test_files_and_markdown_mark_them(run: store.Run) -> None:
    report_files.build(run)
    cells = pd.read_csv(run.directory / "cells.csv")
    marked = cells.loc[cells["approximate"].notna(), "implementation"]
    assert set(marked) == {"sparse", "coarse"}
    drawn = [path.read_text("utf-8") for path in (run.directory / "plots").glob("ratios*.svg")]
    assert drawn
    assert all("sparse (approximate)" in text for text in drawn)
    text = (run.directory / "report.md").read_text("utf-8")
    assert "sparse (approximate)" in text
    assert "Approximate steps are ranked separately" in text
