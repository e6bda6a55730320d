"""What an earlier call has found, which need not be searched again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench.measure.environment import relevant_variables
from bench.plan.content_keys import DIGITS, Contents
from bench.plan.matrix import BadInput
from bench.project.maxbatch.largest import Limit, Line, with_batch
from bench.records.cells import Cell
from bench.records.largest_batches import MaxBatchRow, key, key_of
from bench.records.rows import CellRow


def plans(measured: Iterable[CellRow], contents: Contents) -> dict[Cell, float | None]:
    """What the compiler planned for a device, of cells that are here what they were in the run.

    None of one whose files, versions or device have changed since: it is compiled again.
    """
    found: dict[Cell, float | None] = {}
    for row in measured:
        cell, memory = Cell.of(row), row.get("memory")
        same = memory and row.get("key") == _key(cell, contents)
        found[cell] = memory["total_bytes"] if memory and same else None
    return found


def hashed(lines: Iterable[Line], contents: Contents) -> list[Line]:
    """Lines with a hash each: of their files, versions, device, and variables that change XLA."""
    return [replace(line, contents=_hash(line, contents)) for line in lines]


def kept(lines: Sequence[Line], limit: Limit, stored: Iterable[MaxBatchRow]) -> list[MaxBatchRow]:
    """Stored rows that are the lines' answers still.

    They are of the same limit and contents, and say which batch fits, or that none is predicted to;
    what ended otherwise may end better the next time.
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


def _hash(line: Line, contents: Contents) -> str | None:
    own = _key(with_batch(line.cell, 0), contents)  # of no batch: it is what is searched
    if own is None:
        return None
    text = json.dumps([own, relevant_variables(os.environ)])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _key(cell: Cell, contents: Contents) -> str | None:
    try:
        return contents.key(cell)
    except (BadInput, KeyError):  # a file is gone, as the search will say
        return None
