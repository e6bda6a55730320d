"""Ceilings are the best that the same hardware showed, and cells have a place beneath them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import synthetic

from bench.analyse import cell_table, peaks
from bench.records import store
from bench.records.rows import Ceilings

MACHINE: Ceilings = {
    "matmul_flops": 1e11,
    "memory_bytes": 1e10,
    "all_reduce_bytes": 2e9,
    "all_reduce_s": 5e-5,
}
CELL = {
    "compiled_flops": 6e8,
    "model_flops": 5e8,
    "accessed_bytes": 3e8,
    "wire_bytes": 4e6,
    "step_s": 0.02,
    "devices": 2,
}
PLAN = synthetic.Plan(devices=(1, 2), variants={"": 1.0, "fast": 0.9}, rounds=4)


def test_a_cell_beneath_the_roof_of_memory() -> None:
    found = peaks.roofline(CELL, MACHINE)
    assert found == {
        "intensity": 2.0,
        "device_flops": pytest.approx(1.5e10),
        "roof": pytest.approx(0.75),
    }


def test_a_cell_beneath_the_roof_of_products() -> None:
    found = peaks.roofline({**CELL, "accessed_bytes": 6e6}, MACHINE)
    assert found["roof"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"step_s": math.nan}, {"device_flops", "roof"}),
        ({"accessed_bytes": 0.0}, {"intensity", "roof"}),
        ({"accessed_bytes": math.nan}, {"intensity", "roof"}),
        ({"compiled_flops": math.nan}, {"intensity", "device_flops", "roof"}),
        ({"model_flops": 2e9}, {"intensity", "device_flops", "roof"}),
        ({"compiled_flops": 0.0, "model_flops": 0.0}, {"roof"}),
    ],
)
def test_what_is_not_known_is_not_a_number(changes: dict[str, float], unknown: set[str]) -> None:
    found = peaks.roofline({**CELL, **changes}, MACHINE)
    assert {name for name, figure in found.items() if math.isnan(figure)} == unknown


def test_without_ceilings_there_is_no_roof() -> None:
    found = peaks.roofline(CELL, None)
    assert {name for name, figure in found.items() if math.isnan(figure)} == {"roof"}


def built(tmp_path: Path, change: Any = lambda _: None) -> cell_table.Tables:
    directory = synthetic.write(tmp_path, dataclasses.replace(PLAN, launches=2))
    synthetic.rewrite(directory, "blocks", change)
    return cell_table.build(store.load(directory))


def test_tables_have_the_planted_ceilings(tmp_path: Path) -> None:
    found = built(tmp_path)
    one, two = (
        next(block for block in found.comparisons if block.block.mesh.size == devices)
        for devices in (1, 2)
    )
    assert one.ceilings == {**MACHINE, "all_reduce_bytes": None, "all_reduce_s": None}
    assert two.ceilings == MACHINE
    cell = next(cell for cell in two.ranked if cell["implementation"] == "jit_spmd")
    assert cell["intensity"] == pytest.approx(1.5 * 6e9 / 1e6)
    assert cell["device_flops"] == pytest.approx(9e9 / cell["step_s"] / 2)
    assert cell["roof"] == pytest.approx(cell["device_flops"] / 1e11)
    assert set(peaks.roofline(CELL, None)) <= set(found.cells.columns)


def test_the_best_of_the_same_hardware_counts_for_all_its_blocks(tmp_path: Path) -> None:
    best: Ceilings = {
        "matmul_flops": 3e11,
        "memory_bytes": 9e9,
        "all_reduce_bytes": 3e9,
        "all_reduce_s": 4e-5,
    }

    def change(row: dict[str, Any]) -> None:
        if "variant" in row["options"]:
            row["ceilings"] = None
        elif row["devices"] == 2 and row["launch"]:
            row["ceilings"] = best

    for block in built(tmp_path, change).comparisons:
        if block.block.options.variant:
            assert block.ceilings is None
        elif block.block.mesh.size == 2:
            assert block.ceilings == {**best, "memory_bytes": 1e10}
        else:
            assert block.ceilings == {**MACHINE, "all_reduce_bytes": None, "all_reduce_s": None}
