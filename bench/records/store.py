"""A run's folder: created once, appended a block at a time, and read. Imports no jax.

The layout is in bench.records.rows. Nothing stored is ever changed. A launch counts once its line is in
`launches.jsonl`, which is written last, says where the launch's rows lie in the other files and
what their bytes sum up to, and ends with a checksum of its own. Rows of which that does not hold
are never read: what no line speaks of was cut off, and what differs from its line is damaged.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from bench.records import files
from bench.records.rows import (
    SCHEMA,
    BlockRow,
    CellRow,
    Extent,
    LaunchRow,
    LossRow,
    Manifest,
    SampleRow,
    TraceRow,
)
from bench.records.statuses import decisive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
CELLS = "cells.jsonl"
TRACES = "traces.jsonl"
LOSSES = "losses.jsonl"
LAUNCHES = "launches.jsonl"
_ROWS = (SAMPLES, TRACES, LOSSES, CELLS)


class StoreError(Exception):
    """A run folder cannot be made or read; the message says which and why."""


@dataclass(frozen=True)
class Damage:
    """Stored bytes that are not read as data, and with them the whole launch that they are of."""

    file: str
    place: str
    """`line 3`, counted from 1, or `bytes 0 to 511`, counted from 0."""
    what: str
    block: str = ""
    """Empty where it cannot be told."""
    launch: int | None = None

    def __str__(self) -> str:
        of = "" if self.launch is None else f" ({self.block}, launch {self.launch + 1})"
        return f"{self.file}, {self.place}{of}: {self.what}"


@dataclass(frozen=True)
class Run:
    """What a run's folder holds, without launches that were cut off or are damaged.

    Frames have one row a stored row and the columns of bench.records.rows, present even where no row has
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
    losses: list[LossRow]
    """Loss curves, the last of each arm of a block."""
    damaged: list[Damage] = field(default_factory=list)
    """What is there and was not read."""


@dataclass(frozen=True)
class Stored:
    """Of a run's folder, what was neither cut off nor is damaged."""

    manifest: Manifest
    launches: list[LaunchRow]
    texts: Mapping[str, memoryview]
    """Whole files, by name."""
    damaged: list[Damage]

    @property
    def blocks(self) -> list[BlockRow]:
        """Rows of all launches."""
        return [row for launch in self.launches for row in launch["blocks"]]

    def spans(self, name: str) -> list[memoryview]:
        """What the launches have stored in a file: whole lines."""
        extents = _joined([launch["stored"].get(name) for launch in self.launches])
        return [self.texts[name][start:end] for start, end in extents]

    def cells(self) -> list[CellRow]:
        """The row that speaks for each cell, of all its launches, in their order."""
        launches: defaultdict[str, list[Any]] = defaultdict(list)
        for row in {(row["cell"], row["launch"]): row for row in self.rows(CELLS)}.values():
            launches[row["cell"]].append(row)
        return [rows[decisive([row["status"] for row in rows])] for rows in launches.values()]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """What they have stored in it, as rows."""
        return [json.loads(line) for span in self.spans(name) for line in bytes(span).splitlines()]


def create(reports: Path, manifest: Manifest) -> Path:
    """Make the run's folder under `reports`, write its manifest, and return the folder.

    An empty `manifest["run"]` is replaced by a free name such as `2026-11-21_1410_quick`.

    Raises:
      StoreError: the asked name is taken, or is no plain folder name.
    """
    asked = manifest["run"]
    directory = _make_named(reports, asked) if asked else _make_numbered(reports, manifest)
    written: Manifest = {**manifest, "run": directory.name}
    write_manifest(directory, written)
    return directory


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, sealed."""
    with files.replacing(directory / MANIFEST) as draft, draft.open("wb") as file:
        file.write(files.sealed(json.dumps(manifest, indent=2)))
        file.flush()
        os.fsync(file.fileno())


def append_launch(
    directory: Path,
    samples: Sequence[SampleRow],
    cells: Sequence[CellRow],
    blocks: Sequence[BlockRow],
    traces: Sequence[TraceRow] = (),
    losses: Sequence[LossRow] = (),
) -> None:
    """Store one launch: all of its attempts count, or none does.

    Each file is synced before the next is touched, the launch's own line last.

    Args:
      directory: of the run.
      samples: of all attempts.
      cells: of all attempts.
      blocks: a row an attempt; at least one, all of one block and launch.
      traces: of all attempts.
      losses: of all attempts.
    """
    rows = dict(zip(_ROWS, (samples, traces, losses, cells), strict=True))
    stored = {name: _append(directory / name, _lines(rows[name])) for name in rows if rows[name]}
    launch: LaunchRow = {"blocks": list(blocks), "stored": stored}
    _append(directory / LAUNCHES, files.sealed(json.dumps(launch)))


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`.

    Raises:
      StoreError: the folder is not a run, or was written by another version of the format.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise StoreError(f"{directory} is not a run: it has no {MANIFEST}")
    text = path.read_bytes()
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path} is damaged, it is not JSON: {error}") from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise StoreError(f"{path} has schema {schema!r}; this version reads schema {SCHEMA}")
    manifest = files.unsealed(text)
    if manifest is None:
        raise StoreError(f"{path} is damaged: {files.CHANGED}")
    return cast("Manifest", manifest)


def load(directory: Path) -> Run:
    """Read a run, all of it but what was cut off or is damaged.

    Raises:
      StoreError: the folder is not a run, or its manifest has another schema or is damaged.
    """
    from bench.records import frames  # noqa: PLC0415 (its libraries take long to load: see there)

    stored = read(directory)
    cells = frames.of_rows(stored.rows(CELLS), CellRow)
    traces = cast("list[TraceRow]", stored.rows(TRACES))
    losses = cast("list[LossRow]", stored.rows(LOSSES))
    return Run(
        directory=directory,
        manifest=stored.manifest,
        samples=frames.of_samples(stored.spans(SAMPLES)),
        cells=cells.drop_duplicates(["cell", "launch"], keep="last", ignore_index=True),
        blocks=frames.of_rows(map(dict, stored.blocks), BlockRow),
        traces=list({row["cell"]: row for row in traces}.values()),
        losses=list({(row["block"], row["arm"]): row for row in losses}.values()),
        damaged=stored.damaged,
    )


def read(directory: Path) -> Stored:
    """Read a run as the rows that count.

    Raises:
      StoreError: as of `load`.
    """
    manifest = read_manifest(directory)
    # First: what a run that is being measured stores meanwhile is of launches that come later.
    lines = _bytes(directory / LAUNCHES)
    texts = {name: memoryview(_bytes(directory / name)) for name in _ROWS}
    told, damaged = _told(lines)
    faults = [list(_faults(launch, texts)) for launch in told]
    launches = [launch for launch, found in zip(told, faults, strict=True) if not found]
    again = {(row["block"], row["launch"]) for launch in launches for row in launch["blocks"]}
    damaged += [
        replace(fault, what=f"{fault.what}; measured again since")
        if (fault.block, fault.launch) in again
        else fault
        for found in faults
        for fault in found
    ]
    if len(lines) == len(_bytes(directory / LAUNCHES)):
        damaged += _cut_off(told, texts)
    return Stored(manifest, launches, texts, damaged)


def export(frame: pd.DataFrame, directory: Path, name: str) -> None:
    """Write `<name>.csv` and `<name>.parquet`; objects in cells become JSON text."""
    from bench.records import frames  # noqa: PLC0415 (as above)

    frames.write(frame, directory, name)


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


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _append(path: Path, text: bytes) -> Extent:
    """Append whole lines, and tell where they lie."""
    with path.open("a+b") as file:
        offset = _cut_torn_line(file)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return Extent(offset=offset, bytes=len(text), crc32=zlib.crc32(text))


def _cut_torn_line(file: BinaryIO) -> int:
    """Drop what a killed writer left after the last newline, so that rows never join it.

    Returns:
      The size of what is left.
    """
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
    return keep


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


_CUT_OFF = f"half-written, or {LAUNCHES} has lost its end: no launch there speaks of it"


def _told(lines: bytes) -> tuple[list[LaunchRow], list[Damage]]:
    """The launches that `launches.jsonl` tells of, and which of its lines are damaged."""
    *whole, torn = lines.split(b"\n")
    launches: dict[str, LaunchRow] = {}
    damaged = []
    for number, line in enumerate(whole, start=1):
        launch = cast("LaunchRow | None", files.unsealed(line + b"\n"))
        attempt = "" if launch is None else launch["blocks"][0]["attempt"]
        if launch is None or attempt in launches:
            what = files.CHANGED if launch is None else "repeats a launch"
            damaged.append(Damage(LAUNCHES, f"line {number}", what))
        else:
            launches[attempt] = launch
    if torn:
        damaged.append(Damage(LAUNCHES, f"line {len(whole) + 1}", "half-written"))
    return list(launches.values()), damaged


def _faults(launch: LaunchRow, texts: Mapping[str, memoryview]) -> Iterator[Damage]:
    """Which of a launch's rows are not as they were stored."""
    first = launch["blocks"][0]
    for name, extent in launch["stored"].items():
        start, end, text = extent["offset"], extent["offset"] + extent["bytes"], texts[name]
        what = ""
        if end > len(text):
            what = f"the file ends at {len(text)}"
        elif zlib.crc32(text[start:end]) != extent["crc32"]:
            what = files.CHANGED
        if what:
            yield Damage(name, _range(start, end), what, first["block"], first["launch"])


def _cut_off(launches: Sequence[LaunchRow], texts: Mapping[str, memoryview]) -> Iterator[Damage]:
    """What lies behind all launches. What others have followed since was measured again."""
    for name, text in texts.items():
        found = [launch["stored"][name] for launch in launches if name in launch["stored"]]
        end = max((extent["offset"] + extent["bytes"] for extent in found), default=0)
        if end < len(text):
            yield Damage(name, _range(end, len(text)), _CUT_OFF)


def _joined(extents: Iterable[Extent | None]) -> Iterator[tuple[int, int]]:
    """Start and end of what lies together."""
    start = end = 0
    for extent in filter(None, extents):
        if extent["offset"] != end:
            if start < end:
                yield start, end
            start = extent["offset"]
        end = extent["offset"] + extent["bytes"]
    if start < end:
        yield start, end


def _range(start: int, end: int) -> str:
    return f"bytes {start} to {end - 1}"
