"""The largest batches that fit, as a run stores them: `max_batch.jsonl` in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

from bench.records import files
from bench.records.cells import Cell
from bench.records.statuses import Status
from bench.records.store import Damage

FILE = "max_batch.jsonl"

Outcome = Status | Literal["predicted oom", "not predicted"]
"""How some steps ended; or that there were none, since no batch is predicted to fit, or nothing is
predicted."""


class MaxBatchRow(TypedDict):
    """The largest batch that fits, of one implementation on one mesh with one set of options."""

    implementation: str
    workload: str
    """With its size: `gpt2-nano`."""
    mesh: str
    options: str
    """As bench.records.cells.StepOptions writes them."""
    limit_bytes: float
    """Of one device."""
    limit_is: str
    """Where the limit is from, in words."""
    batch: int | None
    """Global batch: the largest that is predicted to fit, and does; None unless `status` is ok."""
    predicted_bytes: float | None
    """Of one device, as compiled for this batch."""
    next_batch: int | None
    """The next larger one that was compiled, or run, and does not fit."""
    next_bytes: float | None
    """As compiled for it; None too where its compiler found too little memory to say."""
    compilations: int
    status: Outcome
    reason: str
    refuted: list[int]
    """Batches that were predicted to fit, and did not."""
    peak_bytes: int | None
    """The most that a device held meanwhile; None where the backend does not count."""
    contents: str | None
    """Hash of the contents of what was searched; None where a file could not be read."""


def read(folder: Path) -> list[MaxBatchRow]:
    """The rows of a run's folder; those that were changed since are left out: see `damage`."""
    return [cast("MaxBatchRow", row) for row in _unsealed(folder) if row is not None]


def damage(folder: Path) -> list[Damage]:
    """What was changed since it was stored."""
    return [
        Damage(f"{FILE}, line {number}", files.CHANGED)
        for number, row in enumerate(_unsealed(folder), 1)
        if row is None
    ]


def _unsealed(folder: Path) -> list[dict[str, Any] | None]:
    path = folder / FILE
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [files.unsealed(line) for line in lines]


def write(folder: Path, rows: Iterable[MaxBatchRow]) -> list[MaxBatchRow]:
    """Store rows in place of those of the same limit, implementation, workload, mesh and options.

    Returns:
      All rows that are stored now, in order.
    """
    stored = {(*key(row), row["limit_bytes"]): row for row in (*read(folder), *rows)}
    found = [stored[name] for name in sorted(stored)]
    files.write(folder / FILE, b"".join(files.sealed(json.dumps(row)) for row in found))
    return found


def key(row: MaxBatchRow) -> tuple[str, ...]:
    """What the row is of, whatever the limit; rows are in its order."""
    return row["workload"], row["options"], row["mesh"], row["implementation"]


def key_of(cell: Cell) -> tuple[str, ...]:
    """`key` of the row that a cell, with whatever batch, has or will have."""
    block = cell.block
    workload = f"{block.workload}-{block.size}"
    return workload, str(block.options), str(block.mesh), cell.implementation
