"""What several runs measured of a cell is put in order, beside a common baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic

from bench.analyse import cell_history, cell_table, change_points
from bench.records import store

PLAN = synthetic.Plan(devices=(2,), rounds=8, ratios={"jit_spmd": 1.0, "pmap": 1.1, "nnx_jit": 1.3})
RUNS = change_points.fewest() + 2
CHANGED = RUNS // 2
"""The first run with a slower `pmap`, and with another version of jax."""


def measured(directory, day, change=lambda manifest: None):
    def start(manifest):
        manifest["started_at"] = f"2026-11-{day:02}T10:00:00+00:00"
        change(manifest)

    synthetic.rewrite(directory, "manifest", start)
    run = store.load(directory)
    return run, cell_table.build(run)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of one cell a day; from one of them on, one implementation is slower."""
    reports = tmp_path_factory.mktemp("reports")

    def upgrade(manifest):
        manifest["versions"]["jax"] = "0.12.0"

    made = []
    for number in range(RUNS):
        late = number >= CHANGED
        plan = replace(
            PLAN,
            seed=1000 * number,
            pace=1 + 0.2 * (number % 3),  # the host differs from day to day
            ratios={**PLAN.ratios, "pmap": 1.2 if late else 1.1},
            contents={"pmap": "d" * 16} if late else {},
        )
        directory = synthetic.write(reports, plan, f"run{number}")
        made.append(measured(directory, number + 1, upgrade if late else lambda manifest: None))
    return made


def test_a_change_is_found_although_the_host_differs(runs):
    # In any order: they are sorted by date.
    found = {h.implementation: h for h in cell_history.find(runs[::-1])}
    assert set(found) == set(PLAN.ratios)
    slower = found["pmap"]
    assert [visit.run.manifest["run"] for visit in slower.visits] == [
        f"run{number}" for number in range(RUNS)
    ]
    (change,) = slower.changes
    assert change.place == CHANGED
    assert change.factor == pytest.approx(1.2 / 1.1, rel=0.01)
    assert [(one.name, one.b) for one in change.differences] == [("jax", "0.12.0")]
    assert change.files == ["implementation pmap"]
    assert found["nnx_jit"].changes == []
    for history in found.values():
        for visit, (_, tables) in zip(history.visits, runs, strict=True):
            cells = tables.cells.set_index("implementation")
            assert visit.step_s == cells["step_s"][history.implementation]
            if history.implementation != "jit_spmd":
                stored = cells["ratio"][history.implementation]
                assert visit.ratio.value == pytest.approx(stored)


def test_the_baseline_has_step_times_alone(runs):
    (baseline,) = (h for h in cell_history.find(runs) if h.implementation == "jit_spmd")
    assert baseline.baseline == "jit_spmd"
    assert (baseline.rated, baseline.changes) == ([], [])
    assert len(baseline.visits) == RUNS


def test_other_hardware_and_other_cells_are_not_mixed_in(runs, tmp_path):
    def other(manifest):
        manifest["host"]["cpu"] = "Another processor"

    def other_system(manifest):
        manifest["host"]["os"] = "Linux 7.0"

    elsewhere = measured(synthetic.write(tmp_path, PLAN, "elsewhere"), 20, other)
    larger = measured(synthetic.write(tmp_path, replace(PLAN, devices=(4,)), "larger"), 21)
    system = measured(synthetic.write(tmp_path, PLAN, "system"), 22, other_system)
    assert cell_history.find([runs[0], elsewhere, larger]) == []
    # The operating system may change on the same hardware.
    assert {len(h.visits) for h in cell_history.find([runs[0], elsewhere, system])} == {2}


def test_ratios_are_to_the_newest_run_s_baseline(runs, tmp_path):
    directory = synthetic.write(tmp_path, PLAN, "other")
    synthetic.rewrite(directory, "blocks", lambda row: row.update(baseline="nnx_jit"))
    found = {h.implementation: h for h in cell_history.find([runs[0], measured(directory, 25)])}
    assert {h.baseline for h in found.values()} == {"nnx_jit"}
    for _, ratio in found["pmap"].rated:
        assert ratio.value == pytest.approx(1.1 / 1.3, rel=0.01)
    assert len(found["jit_spmd"].rated) == 2


def test_what_took_no_turns_beside_the_baseline_has_no_ratio(runs, tmp_path):
    plan = replace(PLAN, alone=frozenset({"pmap"}))
    found = cell_history.find([runs[0], measured(synthetic.write(tmp_path, plan, "alone"), 25)])
    (history,) = (h for h in found if h.implementation == "pmap")
    assert [visit.ratio is None for visit in history.visits] == [False, True]
