"""What a run's folder keeps, and what readers must not believe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pandas as pd
import pytest
import synthetic

from bench import store
from bench.cells import Block

if TYPE_CHECKING:
    from pathlib import Path

PLAN = synthetic.Plan(devices=(1, 2), rounds=6)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, PLAN)
    run = store.load(directory)
    assert run.manifest == synthetic.manifest(PLAN)
    assert len(run.blocks) == 2
    assert len(run.cells) == 2 * len(PLAN.ratios)
    assert len(run.samples) == 2 * 6 * (len(PLAN.ratios) + 1)
    assert run.samples["throughput_ns"].dtype == "int64"
    assert run.cells["compile_trace_s"].notna().all()
    names = {block.name for block in PLAN.blocks()}
    assert set(zip(run.blocks["block"], run.blocks["launch"], strict=True)) == {
        (name, 0) for name in names
    }


def test_a_new_run_is_empty_and_has_all_columns(tmp_path: Path) -> None:
    run = store.load(store.create(tmp_path, synthetic.manifest(PLAN)))
    assert run.cells.empty
    assert {"status", "memory_total_bytes", "profile"} <= set(run.cells.columns)
    assert {"arm", "latency_ns"} <= set(run.samples.columns)
    assert run.blocks.empty


def test_default_names_are_unique_and_asked_names_exact(tmp_path: Path) -> None:
    names = [store.create(tmp_path, synthetic.manifest(PLAN, run="")).name for _ in range(3)]
    first = "2026-11-21_1410_quick"
    assert names == [first, f"{first}_2", f"{first}_3"]
    assert store.load(tmp_path / names[1]).manifest["run"] == names[1]
    with pytest.raises(store.StoreError, match="exists"):
        store.create(tmp_path, synthetic.manifest(PLAN, run=first))
    with pytest.raises(store.StoreError, match="letters, digits"):
        store.create(tmp_path, synthetic.manifest(PLAN, run="../elsewhere"))


@pytest.mark.parametrize("file", [store.SAMPLES, store.CELLS, store.BLOCKS])
def test_every_cut_of_the_last_block_leaves_the_first_alone(tmp_path: Path, file: str) -> None:
    directory = synthetic.write(tmp_path, PLAN)
    first, last = (block.name for block in PLAN.blocks())
    # A writer killed while it wrote `file` left later files without this block.
    order = [store.SAMPLES, store.CELLS, store.BLOCKS]
    for later in order[order.index(file) :]:
        lines = (directory / later).read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["block"] == first]
        torn = lines[len(kept)][:-1] if later == file else b""
        (directory / later).write_bytes(b"".join(kept) + torn)
    run = store.load(directory)
    assert set(run.blocks["block"]) == {first}
    assert set(run.cells["block"]) == {first}
    assert set(run.samples["block"]) == {first}
    # Resuming writes whole lines after the torn one.
    block = next(block for block in PLAN.blocks() if block.name == last)
    store.append_block(directory, *synthetic.attempt(PLAN, block, 0, "all", list(PLAN.ratios)))
    again = store.load(directory)
    assert list(again.blocks["block"]) == [first, last]
    assert len(again.cells) == 2 * len(PLAN.ratios)


def test_a_torn_line_longer_than_a_page_is_dropped(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, PLAN)
    whole = (directory / store.CELLS).read_bytes()
    (directory / store.CELLS).write_bytes(whole + b"{" + b"x" * 200_000)
    store.append_block(directory, [], [], synthetic.attempt(PLAN, *_other())[2])
    assert (directory / store.CELLS).read_bytes() == whole


def test_the_last_row_of_a_cell_counts_in_each_launch(tmp_path: Path) -> None:
    directory = store.create(tmp_path, synthetic.manifest(PLAN))
    block, _, _, names = _other()
    oom = synthetic.Plan(endings={("nnx_jit", 0): ("oom", "no room")})
    for launch in (0, 1):
        store.append_block(directory, *synthetic.attempt(oom, block, launch, "all", names))
    store.append_block(directory, *synthetic.attempt(PLAN, block, 0, "nnx_jit", ["nnx_jit"]))
    run = store.load(directory)
    rows = run.cells[run.cells["implementation"] == "nnx_jit"].set_index("launch")
    assert rows["status"].to_dict() == {0: "ok", 1: "oom"}
    assert rows.loc[0, "interleaved"] is False
    assert len(run.blocks) == 3


def test_what_is_no_run_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(store.StoreError, match=r"not a run: it has no manifest\.json"):
        store.load(tmp_path)
    path = tmp_path / store.MANIFEST
    path.write_text("{")
    with pytest.raises(store.StoreError, match="not JSON"):
        store.load(tmp_path)
    path.write_text('{"schema": 99}')
    with pytest.raises(store.StoreError, match="schema 99; this version reads schema 4"):
        store.load(tmp_path)


def test_a_damaged_whole_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, PLAN)
    path = directory / store.CELLS
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"\0\0\0\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(store.StoreError, match=r"cells\.jsonl, line 3 is damaged"):
        store.load(directory)


def test_exports_hold_the_same_figures(tmp_path: Path) -> None:
    run = store.load(synthetic.write(tmp_path, PLAN))
    store.export(run.cells, tmp_path, "cells")
    parquet = pd.read_parquet(tmp_path / "cells.parquet")
    csv = pd.read_csv(tmp_path / "cells.csv")
    assert (
        list(parquet["model_flops"]) == list(run.cells["model_flops"]) == list(csv["model_flops"])
    )
    assert json.loads(str(parquet["proof"].iloc[0]))[0]["name"] == "fp64 sgd"


def _other() -> tuple[Block, int, str, list[str]]:
    return next(PLAN.blocks()), 0, "all", list(PLAN.ratios)
