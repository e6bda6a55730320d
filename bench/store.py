"""A run's folder: created once, appended a block at a time, read as data frames. Imports no jax.

The layout is in bench.rows. Nothing stored is ever changed; a cut-off attempt stays in the files
and readers skip it, because its block row, which is written last, is missing.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_object_dtype
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from bench.rows import (
    SCHEMA,
    BlockRow,
    CellRow,
    CompilersCost,
    CompileTimes,
    HostSlot,
    Manifest,
    MemoryBytes,
    SampleRow,
    TraceRow,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
CELLS = "cells.jsonl"
TRACES = "traces.jsonl"
BLOCKS = "blocks.jsonl"

_NESTED: dict[type, dict[str, type]] = {
    CellRow: {"compile": CompileTimes, "memory": MemoryBytes, "cost": CompilersCost},
    SampleRow: {"host": HostSlot},
}
"""Keys that become columns of their own: `compile_trace_s`, `memory_total_bytes` ..."""


class StoreError(Exception):
    """A run folder cannot be made or read; the message says which and why."""


@dataclass(frozen=True)
class Run:
    """What a run's folder holds, without attempts that were cut off.

    Frames have one row a stored row and the columns of bench.rows, present even where no row has
    them; `compile` and `memory` of a cell and `host` of a sample are spread over columns, `proof`
    and `looks` stay objects.
    """

    directory: Path
    manifest: Manifest
    samples: pd.DataFrame
    cells: pd.DataFrame
    """The last row of each cell in each launch."""
    blocks: pd.DataFrame
    traces: list[TraceRow]
    """What traces showed, the last of each cell."""


def create(reports: Path, manifest: Manifest) -> Path:
    """Make the run's folder under `reports`, write its manifest, and return the folder.

    An empty `manifest["run"]` is replaced by a free name such as `2026-11-21_1410_quick`.

    Raises:
      StoreError: the asked name is taken, or is no plain folder name.
    """
    asked = manifest["run"]
    directory = _make_named(reports, asked) if asked else _make_numbered(reports, manifest)
    written: Manifest = {**manifest, "run": directory.name}
    # Under another name first: a manifest that exists is whole.
    draft = directory / f"{MANIFEST}.part"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(written, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(directory / MANIFEST)
    return directory


def append_block(
    directory: Path,
    samples: Sequence[SampleRow],
    cells: Sequence[CellRow],
    block: BlockRow,
    traces: Sequence[TraceRow] = (),
) -> None:
    """Store one attempt. Each file is synced before the next is touched, the block row last."""
    _append(directory / SAMPLES, samples)
    if traces:
        _append(directory / TRACES, traces)
    _append(directory / CELLS, cells)
    _append(directory / BLOCKS, [block])


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`.

    Raises:
      StoreError: the folder is not a run, or was written by another version of the format.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise StoreError(f"{directory} is not a run: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StoreError(f"{path} is not JSON: {error}") from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise StoreError(f"{path} has schema {schema!r}; this version reads schema {SCHEMA}")
    return cast("Manifest", manifest)


def load(directory: Path) -> Run:
    """Read a run.

    Raises:
      StoreError: the folder is not a run, has another schema, or a whole line of it is damaged.
    """
    manifest = read_manifest(directory)
    blocks = _frame(_read(directory / BLOCKS), BlockRow)
    attempts = set(zip(blocks["block"], blocks["launch"], blocks["attempt"], strict=True))

    def whole(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [dict(r) for r in rows if (r["block"], r["launch"], r["attempt"]) in attempts]

    cells = _frame(whole(_read(directory / CELLS)), CellRow)
    traces = {row["cell"]: row for row in whole(_read(directory / TRACES))}
    return Run(
        directory=directory,
        manifest=manifest,
        samples=_samples(directory / SAMPLES, blocks),
        cells=cells.drop_duplicates(["cell", "launch"], keep="last", ignore_index=True),
        blocks=blocks,
        traces=cast("list[TraceRow]", list(traces.values())),
    )


def export(frame: pd.DataFrame, directory: Path, name: str) -> None:
    """Write `<name>.csv` and `<name>.parquet`; objects in cells become JSON text."""
    flat = frame.copy()
    for column in filter(lambda name: is_object_dtype(flat[name]), flat.columns):
        if flat[column].map(lambda value: isinstance(value, dict | list | np.ndarray)).any():
            flat[column] = flat[column].map(_json)
    table = pa.Table.from_pandas(flat, preserve_index=False)
    csv.write_csv(table, directory / f"{name}.csv", csv.WriteOptions(quoting_style="needed"))
    parquet.write_table(table, directory / f"{name}.parquet")


def _json(value: Any) -> str | None:
    if isinstance(value, np.ndarray):  # what a stored list is read as
        value = value.tolist()
    return json.dumps(value) if isinstance(value, dict | list) else None


def _make_named(reports: Path, name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise StoreError(f"run name {name!r}: use letters, digits, '.', '_' and '-' only")
    try:
        (reports / name).mkdir(parents=True)
    except FileExistsError as error:
        raise StoreError(f"run {name!r} exists in {reports}: resume it, or name another") from error
    return reports / name


def _make_numbered(reports: Path, manifest: Manifest) -> Path:
    started = datetime.fromisoformat(manifest["started_at"])
    name = f"{started:%Y-%m-%d_%H%M}_{manifest['preset']}"
    number = 1
    while True:
        directory = reports / (name if number == 1 else f"{name}_{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return directory


def _append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    with path.open("a+b") as file:
        _cut_torn_line(file)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def _cut_torn_line(file: BinaryIO) -> None:
    """Drop what a killed writer left after the last newline, so that rows never join it."""
    end = file.seek(0, os.SEEK_END)
    keep, found = end, False
    while keep and not found:
        start = max(0, keep - 65536)
        file.seek(start)
        newline = file.read(keep - start).rfind(b"\n")
        found = newline >= 0
        keep = start + newline + 1
    if keep < end:
        file.truncate(keep)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    # What follows the last newline is a line that a killed writer left unfinished.
    lines = path.read_bytes().split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise StoreError(f"{path}, line {number} is damaged: {error}") from error
    return rows


def _samples(path: Path, blocks: pd.DataFrame) -> pd.DataFrame:
    """Samples of the attempts that have a block row. There may be very many."""
    columns = _columns(SampleRow)
    if not path.exists():
        return pd.DataFrame(columns=columns)
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]  # as in `_read`
    if not whole:
        return pd.DataFrame(columns=columns)
    try:
        table = arrow_json.read_json(pa.BufferReader(whole))
    except pa.ArrowInvalid as error:
        _read(path)  # names the line
        raise StoreError(f"{path} is damaged: {error}") from error
    frame: pd.DataFrame = table.flatten().to_pandas()
    frame.columns = [str(name).replace(".", "_") for name in frame.columns]
    key = ["block", "launch", "attempt"]
    return frame.reindex(columns=columns).merge(blocks[key].drop_duplicates(), on=key)


def _frame(rows: list[dict[str, Any]], kind: type) -> pd.DataFrame:
    nested = _NESTED.get(kind, {})
    return pd.DataFrame([_spread(row, nested) for row in rows], columns=_columns(kind))


def _columns(kind: type) -> list[str]:
    nested = _NESTED.get(kind, {})
    columns = []
    for key in _keys(kind):
        columns += [f"{key}_{name}" for name in _keys(nested[key])] if key in nested else [key]
    return columns


def _spread(row: dict[str, Any], nested: Iterable[str]) -> dict[str, Any]:
    flat = {key: value for key, value in row.items() if key not in nested}
    for key in nested:
        for name, value in (row.get(key) or {}).items():
            flat[f"{key}_{name}"] = value
    return flat


def _keys(kind: type) -> list[str]:
    """Keys of a TypedDict, those it inherits first."""
    return list(kind.__annotations__)
