"""Results of earlier calls that are still valid, so that their search is not repeated."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench.measure.environment import relevant_variables
from bench.plan.content_keys import Contents, digest
from bench.plan.option_values import BadInput
from bench.project.maxbatch.largest_fit import Limit, Line, with_batch
from bench.records.cells import Cell
from bench.records.largest_batches import MaxBatchRow, key, key_of
from bench.records.rows import CellRow


def planned_bytes(measured: Iterable[CellRow], contents: Contents) -> dict[Cell, float | None]:
    """Return the memory that the compiler planned for each measured cell.

    None if the cell's files, versions or device have changed since; it is then compiled again.
    """
    planned: dict[Cell, float | None] = {}
    for row in measured:
        cell, memory = Cell.of(row), row.get("memory")
        same = memory and row.get("key") == _key(cell, contents)
        planned[cell] = memory["total_bytes"] if memory and same else None
    return planned


def with_hashes(lines: Iterable[Line], contents: Contents) -> list[Line]:
    """Return the lines with hashes of their files, versions, device, and XLA-related variables."""
    variables = relevant_variables(os.environ)

    def hashed(cell: Cell) -> str | None:
        # The search varies the batch, so it is not part of the hash.
        own = _key(with_batch(cell, 0), contents)
        return own and digest(json.dumps([own, variables]).encode())

    return [replace(line, contents=hashed(line.cell)) for line in lines]


def valid(lines: Sequence[Line], limit: Limit, stored: Iterable[MaxBatchRow]) -> list[MaxBatchRow]:
    """Return the stored rows that still answer the lines.

    They have the same limit and contents, and state which batch fits, or that none is predicted to.
    Any other outcome might be better the next time.
    """
    known = {key_of(line.cell): line for line in lines}
    return [
        row
        for row in stored
        if (line := known.get(key(row)))
        and row["status"] in ("ok", "predicted oom")
        and row["limit_bytes"] == limit.bytes
        and line.contents is not None
        and row.get("contents") == line.contents  # rows of earlier versions have none
    ]


def _key(cell: Cell, contents: Contents) -> str | None:
    try:
        return contents.key(cell)
    except (BadInput, KeyError):  # a file is missing; the search will report that
        return None
