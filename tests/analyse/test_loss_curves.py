"""Loss curves: planted differences are found, told from rounding, and shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import synthetic
from pages import column
from rich.console import Console

from bench.analyse import cell_table, loss_curves
from bench.present import caveats, closing_summary, page_data, report_files, run_tables
from bench.records import store
from bench.records.arms import IN_PARTS, WHOLE_BATCH
from bench.records.rows import Manifest

if TYPE_CHECKING:
    from pathlib import Path

    from bench.analyse.cell_table import Tables

PLAN = synthetic.Plan(
    devices=(1, 2),
    ratios={"jit_spmd": 1.0, "right": 1.1, "drifts": 1.2},
    rounds=6,
    trained=100,
    drifts={"right": 1e-8, "drifts": 1e-5},
)
"""The gate's tolerance is 3.04e-4: `drifts` passes it at step 31."""


def read(folder: Path, **changes: object) -> tuple[store.Run, Tables]:
    run = store.load(synthetic.write(folder, replace(PLAN, **changes)))  # type: ignore[arg-type]
    return run, cell_table.build(run)


def unfinished(found: Tables, manifest: Manifest) -> str:
    return caveats.caveats(found, manifest).get("Phases that failed", "")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[store.Run, Tables]:
    return read(tmp_path_factory.mktemp("reports"))


def test_planted_differences_are_found(stored: tuple[store.Run, Tables]) -> None:
    one, _ = loss_curves.find(stored[1])
    assert [curve.arm for curve in one.curves] == ["drifts", "jit_spmd", "right"]
    drifts, equal, right = one.curves
    assert drifts.largest == pytest.approx(100e-5)
    assert drifts.early == pytest.approx(40e-5)
    assert drifts.beyond == 31
    assert (equal.largest, equal.early, equal.beyond) == (0.0, 0.0, None)
    assert right.largest == pytest.approx(1e-6)
    assert right.beyond is None
    assert (equal.differences == 0).all()
    assert (np.diff(drifts.differences) > 0).all()
    assert one.yardstick is not None
    assert one.yardstick.arm == IN_PARTS
    assert not replace(one, yardstick=None).parted
    assert one.steps == 100


def test_what_leaves_early_is_a_caveat_unless_the_reference_does_too(
    stored: tuple[store.Run, Tables], tmp_path: Path
) -> None:
    told = caveats.caveats(stored[1], stored[0].manifest)
    text = told["Loss curves diverge early"]
    assert text.startswith("2 cells diverged from the reference's losses within 40 steps")
    assert "drifts in mlp-base/data=1/b64/fp32 most, by 4.0e-4, where 3.0e-4 is allowed" in text
    console = Console(file=io.StringIO(), width=1000)
    closing_summary.print_summary(console, *stored)
    assert text in console.file.getvalue()
    rough = read(tmp_path / "rough", drifts={**PLAN.drifts, IN_PARTS: 1e-5})
    late = read(tmp_path / "late", drifts={"drifts": 5e-6})
    for run, found in (rough, late):
        titles = caveats.caveats(found, run.manifest)
        assert "Loss curves diverge early" not in titles
        assert loss_curves.find(found)[0].curves[0].beyond


def test_curves_that_end_early_or_are_missing_are_named(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, replace(PLAN, devices=(2,)))

    def change(row: dict) -> None:
        if row["arm"] == "drifts":
            row.update(losses=row["losses"][:10], reason="the loss of step 11 is nan")
        if row["arm"] == "right":
            row.update(arm="elsewhere")

    synthetic.rewrite(directory, "losses", change)
    run = store.load(directory)
    found = cell_table.build(run)
    (one,) = loss_curves.find(found)
    drifts, _, right = one.curves
    assert drifts.largest == drifts.early == pytest.approx(10e-5)
    assert (right.largest, right.beyond) == (None, None)
    assert unfinished(found, run.manifest).startswith(
        "There is no whole loss curve of 2 cells, for instance mlp-base/data=2/b64/fp32/drifts: "
        "the loss of step 11 is nan."
    )
    assert "its worker ended before" in str(run_tables.losses([one]).rows)
    assert page_data.build(found, run.manifest)["losses"][0]["curves"][2]["loss"][10] is None


def test_a_worker_that_ended_before_it_trained_is_a_caveat(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, PLAN)

    def lose(row: dict) -> None:
        if row["block"].startswith("mlp-base/data=2/"):
            row.update(block="mlp-base/data=3/b64/fp32")

    def end(row: dict) -> None:
        if row["devices"] == 2:
            row["ended"] = "the worker exited with code 3 during checkpoint"

    synthetic.rewrite(directory, "losses", lose)
    synthetic.rewrite(directory, "blocks", end)
    run = store.load(directory)
    manifest = {**run.manifest, "config": {**run.manifest["config"], "checkpoints": ["sync"]}}
    told = caveats.caveats(cell_table.build(run), manifest)
    first = f"mlp-base/data=2/b64/fp32/{run.cell_rows[0]['implementation']}"
    reason = "the worker exited with code 3 during checkpoint"
    curves, _, checkpoints = told["Phases that failed"].partition(f"{first}: {reason}. ")
    assert curves == "There is no whole loss curve of 3 cells, for instance "
    assert checkpoints.startswith("There is no checkpoint of 6 cells, for instance ")


def test_without_a_reference_there_is_no_difference(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, replace(PLAN, devices=(2,)))

    def change(row: dict) -> None:
        if row["arm"] == WHOLE_BATCH:
            row.update(losses=[], reason="oom: no room")

    synthetic.rewrite(directory, "losses", change)
    run = store.load(directory)
    found = cell_table.build(run)
    assert all(each.largest is None for one in loss_curves.find(found) for each in one.curves)
    assert unfinished(found, run.manifest) == (
        "There is no whole loss curve of 1 reference, for instance whole batch of "
        "mlp-base/data=2/b64/fp32: oom: no room."
    )
    assert loss_curves.curves_frame(loss_curves.find(found))["difference"].isna().all()
    page_data.encode(page_data.build(found, run.manifest))


def test_the_report_has_curves_and_differences(stored: tuple[store.Run, Tables]) -> None:
    run, _ = stored
    report_files.build(run)
    curves = pd.read_csv(run.directory / "losses.csv")
    assert len(curves) == 2 * 5 * 100
    drifts = curves[(curves["arm"] == "drifts") & (curves["block"].str.contains("data=2"))]
    assert drifts["step"].tolist() == list(range(1, 101))
    assert drifts["difference"].to_numpy() == pytest.approx(1e-5 * np.arange(1, 101))
    text = (run.directory / "report.md").read_text()
    assert "### Largest difference from the reference's loss" in text
    assert "| drifts | data=2, batch 64 | 1.0e-3 | 4.0e-4 | 31 |" in text


def test_a_page_has_only_so_many_steps(
    stored: tuple[store.Run, Tables], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, found = stored
    whole = page_data.build(found, run.manifest)["losses"]
    assert whole[0]["steps"] == list(range(1, 101))
    assert whole[1]["curves"][2]["name"] == "drifts"
    cell = whole[1]["curves"][2]["cell"]
    assert found.cells["cell"][cell] == "mlp-base/data=2/b64/fp32/drifts"
    monkeypatch.setattr(page_data, "MOST_STEPS", 20)
    few = json.loads(page_data.encode(page_data.build(found, run.manifest)))["losses"]
    assert (len(few[0]["steps"]), few[0]["steps"][0], few[0]["steps"][-1]) == (20, 1, 100)
    curve = few[0]["curves"][2]
    assert len(curve["loss"]) == len(curve["apart"]) == 20
    assert curve["apart"][-1] == pytest.approx(1e-3)
    largest = column(page_data.build(found, run.manifest), "loss_differences", "largest")
    assert max(largest) == pytest.approx(1e-3)


def test_a_run_that_did_not_train_says_nothing_of_it(tmp_path: Path) -> None:
    run, found = read(tmp_path, trained=0)
    assert loss_curves.find(found) == []
    assert page_data.build(found, run.manifest)["losses"] == []
    assert unfinished(found, run.manifest) == ""
