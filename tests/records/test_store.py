"""What a run's folder keeps, and what readers must not believe."""

from __future__ import annotations

import importlib
import json
import shutil
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pandas as pd
import pytest
import synthetic

from bench.records import files, frames, store
from bench.records.cells import Block
from bench.records.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAN = synthetic.Plan(devices=(1, 2), rounds=6)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, PLAN)
    run = store.load(directory)
    assert run.manifest == synthetic.manifest(PLAN)
    assert len(run.cell_rows) == 2 * len(PLAN.ratios)
    assert len(run.samples) == 2 * 6 * (len(PLAN.ratios) + 1)
    assert run.samples["throughput_ns"].dtype == "int64"
    assert [(row["block"], row["launch"]) for row in run.block_rows] == [
        (block.name, 0) for block in PLAN.blocks()
    ]


def test_a_new_run_is_empty_and_has_all_columns(tmp_path: Path) -> None:
    run = store.load(store.create(tmp_path, synthetic.manifest(PLAN)))
    assert run.cell_rows == run.block_rows == []
    assert run.samples.empty
    assert {"arm", "latency_ns", "host_steal_s"} <= set(run.samples.columns)


def test_default_names_are_unique_and_asked_names_exact(tmp_path: Path) -> None:
    names = [store.create(tmp_path, synthetic.manifest(PLAN, run="")).name for _ in range(3)]
    first = "2026-11-21_1410_quick"
    assert names == [first, f"{first}_2", f"{first}_3"]
    assert store.load(tmp_path / names[1]).manifest["run"] == names[1]
    with pytest.raises(store.StoreError, match="exists"):
        store.create(tmp_path, synthetic.manifest(PLAN, run=first))


def test_a_launch_that_was_half_written_is_no_launch(tmp_path: Path) -> None:
    """As a writer leaves it who is killed: its draft never took the file's place."""
    directory = store.create(tmp_path, synthetic.manifest(PLAN))
    first, last = PLAN.blocks()
    append(directory, first)
    append(directory, last)
    path = synthetic.launch_files(directory)[-1]
    path.rename(path.with_name(f"{path.name}.123.part"))
    run = store.load(directory)
    assert [row["block"] for row in run.block_rows] == [first.name]
    assert {row["block"] for row in run.cell_rows} == {first.name}
    assert set(run.samples["block"]) == {first.name}
    assert run.damaged == []
    append(directory, last)
    again = store.load(directory)
    assert [row["block"] for row in again.block_rows] == [first.name, last.name]
    assert len(again.cell_rows) == 2 * len(PLAN.ratios)
    assert len(again.samples) == 2 * 6 * (len(PLAN.ratios) + 1)
    assert len(again.traces) == 2 * len(PLAN.ratios)
    assert len(again.losses) == 2 * (len(PLAN.ratios) + 2)
    assert again.damaged == []


def test_a_launch_of_a_block_with_a_long_name_is_stored(tmp_path: Path) -> None:
    directory = store.create(tmp_path, synthetic.manifest(PLAN))
    block, *_ = _other()
    samples, cells, row = synthetic.attempt(PLAN, block, 0, "all", ["jit_spmd"])
    store.add_launch(directory, samples, cells, [row | {"block": "ß日本" * 80}])
    assert [row["block"] for row in store.load(directory).block_rows] == ["ß日本" * 80]


def test_attempts_of_a_launch_count_together(tmp_path: Path) -> None:
    plan = replace(PLAN, devices=(1,), alone=frozenset({"nnx_jit"}))
    run = store.load(synthetic.write(tmp_path, plan))
    assert len(run.block_rows) == 2
    assert len(synthetic.launch_files(run.directory)) == 1


def test_the_last_row_of_a_cell_counts_in_each_launch(tmp_path: Path) -> None:
    directory = store.create(tmp_path, synthetic.manifest(PLAN))
    block, _, _, names = _other()
    oom = synthetic.Plan(endings={("nnx_jit", 0): ("oom", "no room")})
    for launch in (0, 1):
        synthetic.append(directory, synthetic.attempt(oom, block, launch, "all", names))
    synthetic.append(directory, synthetic.attempt(PLAN, block, 0, "nnx_jit", ["nnx_jit"]))
    run = store.load(directory)
    rows = {row["launch"]: row for row in run.last_cell_rows if row["implementation"] == "nnx_jit"}
    assert {launch: row["status"] for launch, row in rows.items()} == {0: "ok", 1: "oom"}
    assert rows[0]["interleaved"] is False
    assert len(run.block_rows) == 3


def test_what_is_no_run_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(store.StoreError, match=r"not a run: it has no manifest\.json"):
        store.load(tmp_path)
    path = tmp_path / store.MANIFEST
    path.write_text("{")
    with pytest.raises(store.StoreError, match="not JSON"):
        store.load(tmp_path)
    path.write_text('{"schema": 99}')
    with pytest.raises(store.StoreError, match="schema 99; this version reads schema 6"):
        store.load(tmp_path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> store.Run:
    """A run with every file, of several launches."""
    directory = store.create(tmp_path_factory.mktemp("stored"), synthetic.manifest(PLAN))
    for block in PLAN.blocks():
        append(directory, block)
    return store.load(directory)


def flipped(text: bytes, place: int) -> bytes:
    return text[:place] + bytes([text[place] ^ 1 << place % 8]) + text[place + 1 :]


def cut(text: bytes, place: int) -> bytes:
    return text[:place]


@pytest.mark.parametrize("spoil", [flipped, cut])
@pytest.mark.parametrize("number", [None, 0, 1])
def test_damage_is_named_and_never_read_as_data(
    stored: store.Run,
    tmp_path: Path,
    number: int | None,
    spoil: Callable[[bytes, int], bytes],
) -> None:
    shutil.copytree(stored.directory, tmp_path / "r")
    path = tmp_path / "r" / store.MANIFEST
    if number is not None:
        path = synthetic.launch_files(tmp_path / "r")[number]
    text = path.read_bytes()
    ends = [place + shift for place in line_ends(text) for shift in (-1, 0, 1)]
    places = {*range(0, len(text), len(text) // 16), *(p for p in ends if p < len(text))}
    for place in sorted(places):
        path.write_bytes(spoil(text, place))
        if number is None:
            with pytest.raises(store.StoreError, match=r"r/manifest\.json"):
                store.load(tmp_path / "r")
            continue
        run = store.load(tmp_path / "r")
        assert run.damaged == [f"launches/{path.name}: {files.CHANGED}"], place
        # What is read is what was stored, launch by launch.
        kept = {row["block"] for row in run.block_rows}
        assert kept < {row["block"] for row in stored.block_rows}
        same = stored.samples[stored.samples["block"].isin(kept)].to_dict("records")
        assert str(run.samples.to_dict("records")) == str(same)
        for rows, originals in (
            (run.cell_rows, stored.cell_rows),
            (run.traces, stored.traces),
        ):
            assert rows == [row for row in originals if row["block"] in kept]


def line_ends(text: bytes) -> list[int]:
    """Of a few lines, also the first and the last."""
    ends = [place for place, byte in enumerate(text) if byte == ord("\n")]
    return [*ends[:2], *ends[-1:]]


def test_damage_says_where_it_is(stored: store.Run, tmp_path: Path) -> None:
    directory = tmp_path / "r"
    shutil.copytree(stored.directory, directory)
    first, second = synthetic.launch_files(directory)
    first.write_bytes(flipped(first.read_bytes(), 1))
    shutil.copy(second, second.with_name(second.name.replace("0002", "0004")))
    assert store.load(directory).damaged == [
        f"launches/{first.name}: {files.CHANGED}",
        f"launches/{second.name.replace('0002', '0004')}: repeats a launch",
        "launches/0003: the file is missing",
    ]
    append(directory, next(PLAN.blocks()))
    again = store.load(directory)
    assert again.damaged[0] == f"launches/{first.name}: {files.CHANGED}; measured again since"
    assert len(again.block_rows) == 2
    first.unlink()
    assert "launches/0001: the file is missing" in store.load(directory).damaged


def test_what_is_stored_while_it_is_read_is_no_damage(
    stored: store.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stored.directory, tmp_path / "r")
    files_before = store._launch_files(tmp_path / "r")
    append(tmp_path / "r", next(replace(PLAN, devices=(4,)).blocks()))
    with monkeypatch.context() as patch:
        patch.setattr(store, "_launch_files", lambda _: files_before)
        run = store.load(tmp_path / "r")
    assert run.damaged == []
    assert len(run.block_rows) == 2
    assert len(store.load(tmp_path / "r").block_rows) == 3


def test_exports_hold_the_same_figures(tmp_path: Path) -> None:
    cells = pd.DataFrame(store.load(synthetic.write(tmp_path, PLAN)).cell_rows)
    frames.write(cells, tmp_path, "cells")
    parquet = pd.read_parquet(tmp_path / "cells.parquet")
    csv = pd.read_csv(tmp_path / "cells.csv")
    assert list(parquet["model_flops"]) == list(cells["model_flops"]) == list(csv["model_flops"])
    assert json.loads(str(parquet["proof"].iloc[0]))[0]["name"] == "fp64 sgd"


def append(directory: Path, block: Block) -> None:
    """Store a launch with rows in every file."""
    rows = synthetic.attempt(PLAN, block, 0, "all", list(PLAN.ratios))
    traces, losses = (make(PLAN, block, rows[1]) for make in (synthetic.traces, synthetic.losses))
    synthetic.append(directory, rows, traces=traces, losses=losses)


def _other() -> tuple[Block, int, str, list[str]]:
    return next(PLAN.blocks()), 0, "all", list(PLAN.ratios)


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("convert_run").convert


def older(folder: Path, run: str) -> Path:
    """A run as schema 5 stored it: a file for each kind of row, and one that lists the launches."""
    directory = synthetic.write(folder, PLAN, run)
    launches, texts, lines = synthetic.launches_of(directory), dict[str, bytes](), b""
    for launch in launches:
        stored = {}
        for kind in ("samples", "cells", "traces", "losses"):
            part = "".join(f"{json.dumps(row)}\n" for row in launch[kind]).encode()
            place = {"offset": len(texts.get(kind, b"")), "bytes": len(part)}
            stored[f"{kind}.jsonl"] = {**place, "crc32": zlib.crc32(part)}
            texts[kind] = texts.get(kind, b"") + part
        lines += files.sealed(json.dumps({"blocks": launch["blocks"], "stored": stored}))
    for name, text in {**texts, "launches": lines}.items():
        (directory / f"{name}.jsonl").write_bytes(text)
    shutil.rmtree(directory / store.LAUNCHES)
    synthetic.rewrite(directory, "manifest", lambda row: row.update(schema=store.SCHEMA - 1))
    return directory


def test_a_run_of_the_schema_before_is_converted(
    tmp_path: Path, convert: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = older(tmp_path, "older")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(directory)
    convert(directory)
    whole, run = store.load(synthetic.write(tmp_path, PLAN, "whole")), store.load(directory)
    assert (run.cell_rows, run.damaged) == (whole.cell_rows, [])
    assert run.samples.equals(whole.samples)
    assert [*directory.glob("*.jsonl")] == []


def test_a_conversion_keeps_the_files_of_damaged_launches(
    tmp_path: Path, convert: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = older(tmp_path, "damaged")
    (directory / "cells.jsonl").write_bytes(b"")
    convert(directory)
    assert store.load(directory).cell_rows == []
    assert capsys.readouterr().err.count("is damaged and left out\n") == 2
    assert len((directory / "samples.jsonl").read_bytes().splitlines()) > 0


def test_what_cannot_be_converted_is_named(tmp_path: Path, convert: Callable[[Path], None]) -> None:
    with pytest.raises(SystemExit, match="nothing is not an undamaged run of schema 5"):
        convert(tmp_path / "nothing")
    directory = older(tmp_path, "stopped-early")
    (directory / "launches.jsonl").unlink()
    convert(directory)
    assert store.load(directory).block_rows == []
