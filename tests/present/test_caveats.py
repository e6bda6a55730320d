"""Caveats that follow from rows of cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.analyse import cell_table
from bench.present import caveats
from bench.records import store
from bench.records.rows import Manifest
from tests import synthetic


def test_what_is_unusual_about_a_cell_is_told(tmp_path: Path) -> None:
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,))))
    content = cell_table.build(run)
    usual = caveats.caveats(content, run.manifest)
    odd, other, *rest = ({**row} for row in content.rows)
    odd |= {"settings": "jax_enable_x64", "failed_launches": 1}
    other |= {"proved_in": "last week", "compiled_in": "yesterday"}
    changed = replace(content, rows=[odd, other, *rest])
    found = caveats.caveats(changed, run.manifest)
    name = odd["cell"]
    assert {title: text for title, text in found.items() if title not in usual} == {
        "Proved or compiled earlier": (
            "Some proofs and compile times are from last week and yesterday, with the same files, "
            "versions and environment; --cold reuses none."
        ),
        "Launches that failed": (f"Cells that failed in some launches and ran in others: {name}."),
        "Settings of the process": (
            f"The files of {name} set jax_enable_x64 for the whole process. They were restored "
            "before anything else was proved or timed."
        ),
    }


def test_blocks_that_a_run_did_not_reach_are_named(tmp_path: Path) -> None:
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,))))
    content, config = cell_table.build(run), run.manifest["config"]
    names = [block.name for block in content.comparisons]

    def told(**more: object) -> str:
        manifest: Manifest = {**run.manifest, "config": config | more}
        return caveats.caveats(content, manifest).get("Blocks without results", "")

    assert told(blocks=names) == told() == ""
    left = f"The run ended before 1 of {len(names) + 1} blocks had been measured: other."
    assert told(blocks=[*names, "other"]) == f"{left} --resume {run.manifest['run']} measures them."
    assert told(blocks=[*names, "other"], regress={}) == left, "a gate cannot be resumed"
