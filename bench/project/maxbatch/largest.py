"""The largest batch of each of a run's cells: searched by compiling, proven by stepping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.project.compiled_programs import Program, Unread
from bench.project.maxbatch.batch_search import Search
from bench.records.cells import Block, Cell
from bench.records.largest_batches import MaxBatchRow, Outcome, key_of
from bench.records.messages import Fit

Read = Callable[[Sequence[Cell]], list[Program | Unread]]
"""Compiles cells without running them."""

Prove = Callable[[Cell], Fit]
"""Runs some steps of one."""

_TRIES = 4
"""Batches that are tried where what was predicted to fit does not."""

_SMALLER = 8
"""Each is smaller than the last by one of so many parts."""


@dataclass(frozen=True)
class Limit:
    """What one device may hold."""

    bytes: float
    words: str
    """Where it is from."""


@dataclass(frozen=True)
class Line:
    """Cells that differ in their batch alone."""

    cell: Cell
    """That of least batch."""
    known: Mapping[int, float]
    """Bytes of a device by batch, where the run has them."""
    contents: str | None = None
    """As its row will have it."""


def lines_of(planned: Mapping[Cell, float | None]) -> list[Line]:
    """One line for each implementation, workload, mesh and set of options.

    Args:
      planned: cells, with what the compiler planned for a device when they were measured. Those of
        several processes and of other environments are left out.
    """
    found: dict[Cell, dict[int, float]] = {}
    first: dict[Cell, Cell] = {}
    for cell in sorted(planned, key=lambda cell: cell.block.batch):
        options = cell.block.options
        if options.processes == 1 and not options.variant:
            known = found.setdefault(first.setdefault(with_batch(cell, 0), cell), {})
            bytes_ = planned[cell]
            if bytes_ is not None:
                known[cell.block.batch] = bytes_
    return [Line(cell, known) for cell, known in found.items()]


def quantum(block: Block) -> int:
    """The smallest batch that can be split over a block's shards and microbatches."""
    return block.mesh.batch_shards * block.options.microbatches


def with_batch(cell: Cell, batch: int) -> Cell:
    """The same cell with another global batch."""
    return replace(cell, block=replace(cell.block, batch=batch))


def largest(lines: Sequence[Line], limit: Limit, read: Read, prove: Prove) -> Iterator[MaxBatchRow]:
    """Search all lines at once, since one process compiles many cells; prove where a search ends.

    Args:
      lines: as `lines_of` gives them.
      limit: of one device.
      read: compiles.
      prove: runs; its devices have the limit, or more.
    """
    searches = [
        (line, Search(quantum(line.cell.block), limit.bytes, dict(line.known))) for line in lines
    ]
    while searches:
        for line, search in searches:
            if search.next is None:
                yield _proven(line, search, limit, prove)
        asked = [(*one, batch) for one in searches if (batch := one[1].next) is not None]
        found = read([with_batch(line.cell, batch) for line, _, batch in asked]) if asked else []
        searches = []
        for (line, search, batch), program in zip(asked, found, strict=True):
            if isinstance(program, Program):
                search.add(batch, program.memory_bytes)
                searches.append((line, search))
            elif program.lack == "oom":
                search.add(batch, math.inf)
                searches.append((line, search))
            else:
                yield _row(line, search, limit, status="not predicted", reason=program.reason)


def _proven(line: Line, search: Search, limit: Limit, prove: Prove) -> MaxBatchRow:
    batch, refuted = search.fits, list[int]()
    if batch is None:
        reason = (
            f"the smallest batch, {search.quantum}, is planned above the limit, and was not run"
        )
        return _row(line, search, limit, status="predicted oom", reason=reason)
    while True:
        fit = prove(with_batch(line.cell, batch))
        if fit["status"] != "oom":
            break
        refuted.append(batch)
        smaller = (batch - max(1, batch // _SMALLER)) // search.quantum * search.quantum
        if not smaller or len(refuted) == _TRIES:
            break
        batch = smaller
    return _row(
        line,
        search,
        limit,
        status=fit["status"],
        reason=fit["reason"],
        batch=batch if fit["status"] == "ok" else None,
        refuted=refuted,
        peak_bytes=fit["peak_bytes"],
    )


def _row(
    line: Line,
    search: Search,
    limit: Limit,
    *,
    status: Outcome,
    reason: str,
    batch: int | None = None,
    refuted: Sequence[int] = (),
    peak_bytes: int | None = None,
) -> MaxBatchRow:
    workload, options, mesh, implementation = key_of(line.cell)
    larger = (*refuted, search.too_large)
    too_large = min((one for one in larger if one is not None), default=None)
    next_bytes = None if too_large is None else search.known.get(too_large)
    return MaxBatchRow(
        implementation=implementation,
        workload=workload,
        mesh=mesh,
        options=options,
        limit_bytes=limit.bytes,
        limit_is=limit.words,
        batch=batch,
        predicted_bytes=None if batch is None else search.known.get(batch),
        next_batch=too_large,
        next_bytes=next_bytes if next_bytes is None or math.isfinite(next_bytes) else None,
        compilations=search.asked,
        status=status,
        reason=reason,
        refuted=list(refuted),
        peak_bytes=peak_bytes,
        contents=line.contents,
    )
