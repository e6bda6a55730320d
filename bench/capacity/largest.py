"""The largest batch of each of a run's cells: searched by compiling, proven by stepping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.capacity.rows import MaxBatchRow
from bench.capacity.search import Search
from bench.cells import Block, Cell
from bench.project.programs import Program, Unread
from bench.protocol import Fit

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
    """Search all lines at once, since one process compiles many cells, then prove one by one.

    Args:
      lines: as `lines_of` gives them.
      limit: of one device.
      read: compiles.
      prove: runs; its devices have the limit, or more.
    """
    searches = {
        line.cell: Search(quantum(line.cell.block), limit.bytes, dict(line.known)) for line in lines
    }
    unread: dict[Cell, str] = {}
    while asked := {
        line: search.next
        for line, search in searches.items()
        if search.next is not None and line not in unread
    }:
        found = read([with_batch(line, batch) for line, batch in asked.items()])
        for (line, batch), program in zip(asked.items(), found, strict=True):
            if isinstance(program, Unread):
                unread[line] = program.reason
            else:
                searches[line].add(batch, program.memory_bytes)
    for line, search in searches.items():
        yield _proven(line, search, limit, unread.get(line, ""), prove)


def _proven(line: Cell, search: Search, limit: Limit, unread: str, prove: Prove) -> MaxBatchRow:
    batch, refuted = search.fits, []
    fit = Fit(status="oom", reason="not even the smallest batch fits", peak_bytes=None)
    if unread:
        fit = Fit(status="unsupported", reason=f"not predicted: {unread}", peak_bytes=None)
    elif batch is not None:
        for _ in range(_TRIES):
            fit = prove(with_batch(line, batch))
            if fit["status"] != "oom":
                break
            refuted.append(batch)
            smaller = (batch - max(1, batch // _SMALLER)) // search.quantum * search.quantum
            if not smaller:
                break
            batch = smaller
    block = line.block
    known = fit["status"] == "ok" and batch is not None
    too_large = search.too_large
    return MaxBatchRow(
        implementation=line.implementation,
        workload=f"{block.workload}-{block.size}",
        mesh=str(block.mesh),
        options=str(block.options),
        limit_bytes=limit.bytes,
        limit_is=limit.words,
        batch=batch if known else None,
        predicted_bytes=search.known.get(batch) if known and batch is not None else None,
        next_batch=too_large,
        next_bytes=None if too_large is None else search.known[too_large],
        compilations=search.asked,
        status=fit["status"],
        reason=fit["reason"],
        refuted=refuted,
        peak_bytes=fit["peak_bytes"],
    )
