"""What an earlier call has found, which need not be searched again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench.capacity.largest import Limit, Line, with_batch
from bench.capacity.rows import MaxBatchRow, key, key_of
from bench.environment import relevant_variables
from bench.keys import DIGITS, Contents
from bench.matrix import BadInput
from bench.protocol import Catalogue


def hashed(lines: Iterable[Line], catalogue: Catalogue) -> list[Line]:
    """Lines with a hash each: of their files, versions, device, and variables that change XLA."""
    contents = Contents(catalogue)
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
    try:
        own = contents.key(with_batch(line.cell, 0))  # of no batch: it is what is searched
    except (BadInput, KeyError):  # a file is gone, as the search will say
        return None
    text = json.dumps([own, relevant_variables()])
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
