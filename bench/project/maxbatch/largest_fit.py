"""The largest batch of each of a run's cells: found by compiling, proven by running."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from bench.present.terminal import activity
from bench.project import compiled_programs
from bench.project.compiled_programs import Program, Read, Unread
from bench.project.maxbatch import fit_proof
from bench.project.maxbatch.batch_search import Search
from bench.records.cells import Block, Cell
from bench.records.largest_batches import MaxBatchRow, Outcome, key_of
from bench.records.mesh import MeshShape
from bench.records.messages import Catalogue, Fit
from bench.records.numbers import count

Prove = Callable[[Cell], Fit]
"""Runs some steps of a cell."""

_TRIES = 4
"""Batches to try if the predicted one does not fit."""

_SMALLER = 8
"""Each of them is smaller than the one before by 1 / _SMALLER."""


@dataclass(frozen=True)
class Limit:
    """The memory that one device may use."""

    bytes: float
    words: str
    """Source of the limit, in words."""


@dataclass(frozen=True)
class Line:
    """Cells that differ only in their batch."""

    cell: Cell
    """The cell with the smallest batch."""
    known: Mapping[int, float]
    """Bytes per device by batch, where the run has them."""
    contents: str | None = None
    """Hash for the stored row; see bench.project.maxbatch.earlier_results."""


def lines_of(planned: Mapping[Cell, float | None]) -> list[Line]:
    """Return a line for each implementation, workload, mesh and set of options.

    Cells of several processes and of variants are left out.

    Args:
      planned: cells, and the bytes that the compiler planned for a device, if known.
    """
    known: dict[Cell, dict[int, float]] = {}
    first: dict[Cell, Cell] = {}
    for cell in sorted(planned, key=lambda cell: cell.block.batch):
        options = cell.block.options
        if options.processes == 1 and not options.variant:
            own = known.setdefault(first.setdefault(with_batch(cell, 0), cell), {})
            size = planned[cell]
            if size is not None:
                own[cell.block.batch] = size
    return [Line(cell, own) for cell, own in known.items()]


def quantum(block: Block) -> int:
    """Return the smallest batch that divides into a block's shards and microbatches."""
    return block.mesh.batch_shards * block.options.microbatches


def with_batch(cell: Cell, batch: int) -> Cell:
    """Return the cell with another global batch."""
    return replace(cell, block=replace(cell.block, batch=batch))


def search_here(
    lines: Sequence[Line], limit: Limit, catalogue: Catalogue, console: Console
) -> Iterator[MaxBatchRow]:
    """Search all lines on this machine, mesh by mesh, and show the progress."""
    rounds = Counter[MeshShape]()
    done = 0

    def read(cells: Sequence[Cell]) -> list[Program | Unread]:
        mesh = cells[0].block.mesh
        rounds[mesh] += 1
        batches = ", ".join(map(str, sorted({cell.block.batch for cell in cells})))
        what = f"compiling {count(len(cells), 'cell')}, batch {batches}"
        with activity(console, f"{done}/{len(lines)} {mesh}, round {rounds[mesh]}: {what}"):
            return compiled_programs.programs(cells, catalogue, here=True)

    def prove(cell: Cell) -> Fit:
        with activity(console, f"{done}/{len(lines)} running {cell.name}"):
            return fit_proof.prove(cell, catalogue)

    for mesh in dict.fromkeys(line.cell.block.mesh for line in lines):
        of_mesh = [line for line in lines if line.cell.block.mesh == mesh]
        for row in largest(of_mesh, limit, read, prove):
            done += 1
            yield row


def largest(lines: Sequence[Line], limit: Limit, read: Read, prove: Prove) -> Iterator[MaxBatchRow]:
    """Find the largest batch of each line, and yield its row once it is proved.

    All lines are searched simultaneously, because one process can compile many cells.

    Args:
      lines: as from `lines_of`.
      limit: of one device.
      read: compiles cells.
      prove: runs steps on devices that have at least the limit.
    """
    searches = [
        (line, Search(quantum(line.cell.block), limit.bytes, dict(line.known))) for line in lines
    ]
    while searches:
        for line, search in searches:
            if search.next is None:
                yield _proven(line, search, limit, prove)
        guesses = [(*each, batch) for each in searches if (batch := each[1].next) is not None]
        cells = [with_batch(line.cell, batch) for line, _, batch in guesses]
        programs = read(cells) if cells else []
        searches = []
        for (line, search, batch), program in zip(guesses, programs, strict=True):
            if isinstance(program, Unread) and program.lack != "oom":
                yield _row(line, search, limit, "not predicted", program.reason)
                continue
            search.add(batch, program.memory_bytes if isinstance(program, Program) else math.inf)
            searches.append((line, search))


def _proven(line: Line, search: Search, limit: Limit, prove: Prove) -> MaxBatchRow:
    batch, refuted = search.fits, list[int]()
    if batch is None:
        reason = (
            f"the smallest batch, {search.quantum}, exceeds the limit as planned, and did not run"
        )
        return _row(line, search, limit, "predicted oom", reason)
    while True:
        fit = prove(with_batch(line.cell, batch))
        if fit["status"] != "oom":
            break
        refuted.append(batch)
        smaller = (batch - max(1, batch // _SMALLER)) // search.quantum * search.quantum
        if not smaller or len(refuted) == _TRIES:
            break
        batch = smaller
    found = batch if fit["status"] == "ok" else None
    return _row(line, search, limit, **fit, batch=found, refuted=refuted)


def _row(
    line: Line,
    search: Search,
    limit: Limit,
    status: Outcome,
    reason: str,
    peak_bytes: int | None = None,
    batch: int | None = None,
    refuted: Sequence[int] = (),
) -> MaxBatchRow:
    workload, options, mesh, implementation = key_of(line.cell)
    too_large = min([*refuted, *filter(None, [search.too_large])], default=None)
    next_bytes = search.known.get(too_large or 0, math.inf)
    return MaxBatchRow(
        implementation=implementation, workload=workload, mesh=mesh, options=options,
        limit_bytes=limit.bytes, limit_is=limit.words,
        batch=batch, predicted_bytes=search.known.get(batch or 0),
        next_batch=too_large, next_bytes=next_bytes if math.isfinite(next_bytes) else None,
        compilations=search.asked, status=status, reason=reason, refuted=list(refuted),
        peak_bytes=peak_bytes, contents=line.contents,
    )  # fmt: skip
