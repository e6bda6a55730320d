"""Storage of a run: its folder is created once, extended launch by launch, and read.

`manifest.json` describes the run. Every launch is one file in `launches/`, which is written
atomically and never changes. Its lines are JSON: the rows of blocks and cells, the rows of traces
and losses, one line per sample, and last the CRC-32 of all previous lines. A file that does not
match its checksum is reported as damaged, and none of it is read.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.records import files
from bench.records.grouping import grouped
from bench.records.rows import SCHEMA, BlockRow, CellRow, LossRow, Manifest, SampleRow
from bench.records.statuses import decisive
from bench.records.step_programs import StepProgram
from bench.records.trace_rows import TraceRow

if TYPE_CHECKING:
    import pandas as pd

MANIFEST = "manifest.json"
LAUNCHES = "launches"
CONVERTER = "docs/convert_run.py"
"""A script that converts a run of schema 5, whose rows are in append-only files."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names that a run may have: those of plain folders, of at most 100 characters."""


class StoreError(Exception):
    """A run's folder cannot be created or read; the message says which and why."""


class _Launch:
    """The file of one launch; all but its first line are parsed only when needed."""

    def __init__(self, text: bytes) -> None:
        first, self._beside, self.samples = text.split(b"\n", 2)
        self.head: dict[str, list[Any]] = json.loads(first)
        self.attempt: str = self.head["blocks"][0]["attempt"]

    @cached_property
    def beside(self) -> dict[str, list[Any]]:
        """The rows of traces and losses."""
        return cast("dict[str, list[Any]]", json.loads(self._beside))


@dataclass(frozen=True)
class Run:
    """The content of a run's folder, without damaged launches."""

    directory: Path
    manifest: Manifest
    launches: Sequence[_Launch]
    damaged: list[str]
    """The damaged parts, each with the reason: `launches/0002: the file is missing`."""

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The samples of all attempts, with all columns of SampleRow, even those that no row has.

        Entries of nested objects are columns of their own, such as `host_steal_s`.
        """
        from bench.records import frames  # noqa: PLC0415 (its libraries take a second to load)

        frame = frames.samples_frame([launch.samples for launch in self.launches])
        for launch in self.launches:  # there may be very many
            launch.samples = b""
        return frame

    @property
    def block_rows(self) -> list[BlockRow]:
        """The block rows of all attempts."""
        return [row for launch in self.launches for row in launch.head["blocks"]]

    @property
    def cell_rows(self) -> list[CellRow]:
        """The cell rows of all attempts."""
        return [row for launch in self.launches for row in launch.head["cells"]]

    @property
    def last_cell_rows(self) -> list[CellRow]:
        """The last row of each cell in each launch."""
        return list({(row["cell"], row["launch"]): row for row in self.cell_rows}.values())

    def sample_rows(self) -> Iterator[SampleRow]:
        """Yield the samples of all attempts, unless `samples` was read before."""
        for launch in self.launches:
            yield from map(json.loads, launch.samples.splitlines())

    @property
    def traces(self) -> list[TraceRow]:
        """The last trace of each cell."""
        rows = (row for launch in self.launches for row in launch.beside["traces"])
        return list({row["cell"]: row for row in rows}.values())

    @property
    def losses(self) -> list[LossRow]:
        """The last loss curve of each arm in each block."""
        rows = (row for launch in self.launches for row in launch.beside["losses"])
        return list({(row["block"], row["arm"]): row for row in rows}.values())

    @property
    def programs(self) -> dict[str, StepProgram]:
        """The stored programs of cells, by name."""
        return {row["cell"]: row["program"] for row in self.cell_rows if "program" in row}

    def decisive(self) -> list[CellRow]:
        """Select the decisive row of each cell among those of its launches."""
        launches = grouped((row["cell"], row) for row in self.last_cell_rows)
        return [rows[decisive([row["status"] for row in rows])] for rows in launches.values()]


def create(reports: Path, manifest: Manifest) -> Path:
    """Create a run's folder in `reports`, write its manifest, and return the folder.

    An empty `manifest["run"]` is replaced by an unused name such as `2026-11-21_1410_quick`.
    StoreError if the name is taken.
    """
    name = manifest["run"]
    started = datetime.fromisoformat(manifest["started_at"])
    default = f"{started:%Y-%m-%d_%H%M}_{manifest['preset']}"
    for number in itertools.count(1):
        directory = reports / (name or (default if number == 1 else f"{default}_{number}"))
        try:
            directory.mkdir(parents=True)
            break
        except FileExistsError as error:
            if name:
                raise StoreError(
                    f"run {name!r} already exists in {reports}; resume it, or choose another name"
                ) from error
    write_manifest(directory, {**manifest, "run": directory.name})
    return directory


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json` with its checksum."""
    files.write_sealed(directory / MANIFEST, manifest)


def add_launch(
    directory: Path,
    samples: Iterable[SampleRow],
    cells: Sequence[CellRow],
    blocks: Sequence[BlockRow],
    traces: Sequence[TraceRow] = (),
    losses: Sequence[LossRow] = (),
) -> None:
    """Store the rows of all attempts of one launch, or nothing.

    `blocks` has one row per attempt, at least one, all of the same block and launch.
    """
    beside = {"traces": traces, "losses": losses}
    lines = [{"blocks": blocks, "cells": cells}, beside, *samples]
    text = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    folder = directory / LAUNCHES
    folder.mkdir(exist_ok=True)
    number = max((_number(path) for path in _launch_files(directory)), default=0) + 1
    # The number tells the files apart, so that a long name may be cut to what file systems take.
    block = re.sub(r"[^\w.=-]", "_", blocks[0]["block"]).encode()[:200].decode(errors="ignore")
    name = f"{number:04}_{block}_launch{blocks[0]['launch'] + 1}"
    files.write(folder / f"{name}.jsonl", text + b"{" + files.checksum(text), durable=True)


def read_manifest(directory: Path) -> Manifest:
    """Read `manifest.json`; StoreError if this is not a run, or is damaged or of another schema."""
    path = directory / MANIFEST
    if not path.is_file():
        raise StoreError(f"{directory} is not a run: it has no {MANIFEST}")
    text = path.read_bytes()
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged, it is not JSON: {error}") from error
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        how = f"; convert it: python {CONVERTER} {directory}" if schema == SCHEMA - 1 else ""
        raise StoreError(f"{path} has schema {schema!r}; this version reads schema {SCHEMA}{how}")
    manifest = files.unsealed(text)
    if manifest is None:
        raise StoreError(f"{path} is damaged: {files.CHANGED}")
    return cast("Manifest", manifest)


def load(directory: Path) -> Run:
    """Read a run, without damaged launches; it raises the errors of `read_manifest`."""
    manifest = read_manifest(directory)
    launches: dict[str, _Launch] = {}
    damaged: dict[Path, str] = {}
    paths = {_number(path): path for path in _launch_files(directory)}
    for path in paths.values():
        try:
            text = path.read_bytes()
            end = text[:-1].rfind(b"\n") + 1
            if text[end:] != b"{" + files.checksum(text[:end]):
                damaged[path] = files.CHANGED
            elif (launch := _Launch(text[:end])).attempt in launches:
                damaged[path] = "repeats a launch"
            else:
                launches[launch.attempt] = launch
        except OSError as error:
            damaged[path] = f"it cannot be read ({error.strerror})"
        except (ValueError, LookupError, TypeError):  # under a right checksum
            damaged[path] = "it does not hold the rows of a launch"
    again = {_place(path) for path in paths.values() if path not in damaged}
    for path, reason in damaged.items():
        if reason == files.CHANGED and _place(path) in again:
            damaged[path] += "; measured again since"
    damage = [f"{LAUNCHES}/{path.name}: {reason}" for path, reason in damaged.items()]
    missing = sorted({*range(1, max(paths, default=0))} - paths.keys())
    damage += [f"{LAUNCHES}/{number:04}: the file is missing" for number in missing]
    return Run(directory, manifest, list(launches.values()), damage)


def newest(reports: Path, most: int | None = 5, without: Collection[str] = ()) -> Iterator[Run]:
    """Yield the `most` runs with the newest last launches, `without` these and unreadable ones."""
    launches = sorted(reports.glob(f"*/{LAUNCHES}"), key=lambda path: -path.stat().st_mtime)
    folders = [path.parent for path in launches if path.parent.name not in without]
    for folder in folders[:most]:
        with contextlib.suppress(StoreError, KeyError, OSError):
            yield load(folder)


def _launch_files(directory: Path) -> list[Path]:
    return sorted((directory / LAUNCHES).glob("[0-9]*_*.jsonl"))


def _number(path: Path) -> int:
    return int(path.name.partition("_")[0])


def _place(path: Path) -> str:
    """Return the part of a launch file's name that identifies its block and launch."""
    return path.name.partition("_")[2]
