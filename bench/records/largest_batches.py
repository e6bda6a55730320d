"""Rows of `max_batch.jsonl` in a run's folder: the largest batches that fit."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from bench.records import files
from bench.records.cells import Cell
from bench.records.statuses import Status

FILE = "max_batch.jsonl"

Outcome = Status | Literal["predicted oom", "not predicted"]
"""The status of a trial run of some steps, or the reason for none: no batch is predicted to fit, or
there is no prediction."""


class MaxBatchRow(TypedDict):
    """The largest batch that fits for one implementation, mesh and set of options."""

    implementation: str
    workload: str
    """Name and size: `gpt2-nano`."""
    mesh: str
    options: str
    """The text of bench.records.cells.StepOptions."""
    limit_bytes: float
    """Memory limit of one device."""
    limit_is: str
    """The source of the limit, in words."""
    batch: int | None
    """Largest global batch that is predicted to fit and did fit; None unless `status` is ok."""
    predicted_bytes: float | None
    """Memory of one device, from the program compiled for this batch."""
    next_batch: int | None
    """The next larger batch that was compiled or run and did not fit."""
    next_bytes: float | None
    """Predicted memory of `next_batch`; None also if its compilation ran out of memory."""
    compilations: int
    status: Outcome
    reason: str
    refuted: list[int]
    """Batches that were predicted to fit but did not."""
    peak_bytes: int | None
    """Peak memory of a device in the trial run; None where the backend does not report it."""
    contents: str | None
    """Hash of the sources, versions, device and variables; None if a file could not be read."""


def read(folder: Path) -> list[MaxBatchRow]:
    """Read the rows of a run's folder, without the damaged ones that `damage` lists."""
    return [cast("MaxBatchRow", row) for row in _unsealed(folder) if row is not None]


def damage(folder: Path) -> list[str]:
    """List the rows that have changed since they were stored, each with the reason."""
    numbered = enumerate(_unsealed(folder), start=1)
    return [f"{FILE}, line {n}: {files.CHANGED}" for n, row in numbered if row is None]


def _unsealed(folder: Path) -> list[dict[str, Any] | None]:
    path = folder / FILE
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [files.unsealed(line) for line in lines]


def write(folder: Path, rows: Iterable[MaxBatchRow]) -> None:
    """Store rows, in place of those with the same `key` and limit; all are stored in order."""
    stored = {(*key(row), row["limit_bytes"]): row for row in (*read(folder), *rows)}
    lines = (files.sealed(json.dumps(stored[name])) for name in sorted(stored))
    files.write(folder / FILE, b"".join(lines))


def key(row: MaxBatchRow) -> tuple[str, ...]:
    """Return the sort key of a row, which identifies it together with its limit."""
    return row["workload"], row["options"], row["mesh"], row["implementation"]


def key_of(cell: Cell) -> tuple[str, ...]:
    """Return the `key` of a cell's row; the cell's batch does not matter."""
    block = cell.block
    workload = f"{block.workload}-{block.size}"
    return workload, str(block.options), str(block.mesh), cell.implementation
