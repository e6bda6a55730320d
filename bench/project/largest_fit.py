"""The largest batch of each of a run's cells: found by compiling, proven by running."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, cast

from rich.console import Console

from bench.measure.environment import relevant_variables, worker_environment
from bench.measure.processes import oom_kills
from bench.measure.processes.guarded import ask
from bench.measure.processes.oom_kills import OUT_OF_MEMORY
from bench.plan.content_keys import Contents
from bench.plan.option_values import BadInput
from bench.present.terminal import activity
from bench.project import compiled_programs
from bench.project.compiled_programs import NoProgram, Program, Read
from bench.records.cells import Cell
from bench.records.files import digest
from bench.records.grouping import grouped
from bench.records.largest_batches import MaxBatchRow, key, key_of
from bench.records.messages import Catalogue, Fit, cell_request
from bench.records.numbers import count
from bench.records.paths import module_command
from bench.records.rows import CellRow

_TRIES = 4
"""The most batches of a line to run, beginning with the predicted one."""
_SMALLER = 8
"""Each batch after the first is smaller than the one before by 1 / _SMALLER."""
RESOLUTION = 16
"""A search ends once the smallest batch that does not fit is at most 1/16, or a quantum, larger."""
GROWTH = 16
"""Largest factor between a guess and the batches compiled before, as distant lines mislead."""

TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Limit:
    """The memory that one device may use."""

    bytes: float
    words: str
    """Source of the limit, in words."""


def limit_of(catalogue: Catalogue, limit_bytes: float | None) -> Limit:
    """Return the memory limit of one device, with its source; raises BadInput without one."""
    if limit_bytes is not None:
        return Limit(limit_bytes, "requested")
    device_bytes = catalogue["device_memory_bytes"]
    if device_bytes is not None:
        return Limit(device_bytes, "the memory available on the device")
    why = f"{catalogue['device_kind']} devices do not report how much a program may use"
    raise BadInput([f"--memory: name the memory limit of one device, as --memory 2GiB: {why}"])


@dataclass
class Search:
    """A search for the largest batch within the limit, of cells that differ only in their batch."""

    cell: Cell
    """The cell with the smallest batch."""
    limit: Limit
    contents: str | None = None
    """Hash of its files, versions, device and XLA-related variables, for the stored row."""
    known: dict[int, float] = field(default_factory=dict)
    """Bytes per device by batch: those that the run has, and then those of guesses, in order;
    infinite for a guess that is only known not to fit."""
    compilations: int = 0

    @property
    def quantum(self) -> int:
        """The smallest batch that divides into shards and microbatches."""
        return self.cell.block.mesh.batch_shards * self.cell.block.options.microbatches

    @property
    def fits(self) -> int | None:
        """The largest batch below all that are too large; None if there is none."""
        below = self.too_large or math.inf
        return max((b for b in self.known if b < below), default=None)

    @property
    def too_large(self) -> int | None:
        """The smallest batch that is known not to fit."""
        return min((b for b, size in self.known.items() if size > self.limit.bytes), default=None)

    @property
    def next(self) -> int | None:
        """The next guess; None if the search has ended."""
        low, high = self.fits, self.too_large
        if low is None:
            return None if high == self.quantum else self.quantum
        step = max(low // RESOLUTION // self.quantum, 1) * self.quantum
        if high is not None and high - low <= step:
            return None
        guess = self._on_line(low)
        last = [size <= self.limit.bytes for size in [*self.known.values()][-2:]]
        if high is None:
            guess = min(guess, GROWTH * low)
        elif guess >= high or last in ([True, True], [False, False]):
            guess = math.isqrt(low * high)
        # A guess just above the largest batch that fits would end the search.
        guess = max(guess // self.quantum * self.quantum, low + step)
        return guess if high is None else min(guess, high - self.quantum)

    def _on_line(self, low: int) -> int:
        """Return where the line through `low` and the batch nearest to it reaches the limit."""
        others = [b for b, size in self.known.items() if b != low and math.isfinite(size)]
        if not others:
            return 2 * low
        other = min(others, key=lambda b: abs(b - low))
        slope = (self.known[other] - self.known[low]) / (other - low)
        if slope <= 0:
            return GROWTH * low
        return int(low + (self.limit.bytes - self.known[low]) / slope)


def searches_of_run(measured: Iterable[CellRow], contents: Contents, limit: Limit) -> list[Search]:
    """Return a search for each group of a run's cells that differ only in their batch.

    It knows the bytes planned for cells that have not changed since. Cells of several processes and
    of variants are left out.
    """
    variables, searches = relevant_variables(os.environ), dict[Cell, Search]()
    for row in sorted(measured, key=itemgetter("batch")):
        cell, memory = Cell.of(row), row.get("memory")
        if cell.block.options.processes > 1 or cell.block.options.variant:
            continue
        # The search varies the batch, so it is not part of the hash.
        alike = with_batch(cell, 0)
        if alike not in searches:
            own = _key(alike, contents)
            hashed = own and digest(json.dumps([own, variables]).encode())
            searches[alike] = Search(cell, limit, hashed)
        if memory and row.get("key") == _key(cell, contents):
            searches[alike].known[cell.block.batch] = memory["total_bytes"]
    return [*searches.values()]


def with_batch(cell: Cell, batch: int) -> Cell:
    """Return the cell with another global batch."""
    return replace(cell, block=replace(cell.block, batch=batch))


def search_here(
    searches: Sequence[Search], catalogue: Catalogue, console: Console
) -> Iterator[MaxBatchRow]:
    """Search on this machine, mesh by mesh, and show the progress."""
    done = 0

    def read(cells: Sequence[Cell]) -> list[Program | NoProgram]:
        batches = ", ".join(map(str, sorted({cell.block.batch for cell in cells})))
        what = f"compiling {count(len(cells), 'cell')}, batch {batches}"
        with activity(console, f"{done}/{len(searches)} {cells[0].block.mesh}: {what}"):
            return compiled_programs.programs(cells, catalogue, here=True)

    def prove(cell: Cell) -> Fit:
        with activity(console, f"{done}/{len(searches)} running {cell.name}"):
            return prove_fit(cell, catalogue)

    for own in grouped((search.cell.block.mesh, search) for search in searches).values():
        for row in largest(own, read, prove):
            done += 1
            yield row


def largest(
    searches: Sequence[Search], read: Read, prove: Callable[[Cell], Fit]
) -> Iterator[MaxBatchRow]:
    """Find the largest batch of each search, and yield its row once it is proved.

    All searches go on simultaneously, because one process can compile many cells. `prove` runs
    steps on devices with at least as much memory as the limit.
    """
    while searches:
        for search in searches:
            if search.next is None:
                yield _proven(search, prove)
        guesses = [(search, batch) for search in searches if (batch := search.next) is not None]
        cells = [with_batch(search.cell, batch) for search, batch in guesses]
        programs = read(cells) if cells else []
        searches = []
        for (search, batch), program in zip(guesses, programs, strict=True):
            if isinstance(program, NoProgram) and program.lack != "oom":
                yield _row(search, status="not predicted", reason=program.reason)
                continue
            size = program.memory_bytes if isinstance(program, Program) else math.inf
            search.known[batch] = size
            search.compilations += 1
            searches.append(search)


def _proven(search: Search, prove: Callable[[Cell], Fit]) -> MaxBatchRow:
    batch, refuted = search.fits, list[int]()
    if batch is None:
        text = "is predicted to exceed the limit, so it was not run"
        reason = f"the smallest batch, {search.quantum}, {text}"
        return _row(search, status="predicted oom", reason=reason)
    while (fit := prove(with_batch(search.cell, batch)))["status"] == "oom":
        refuted.append(batch)
        batch = (batch - max(1, batch // _SMALLER)) // search.quantum * search.quantum
        if not batch or len(refuted) == _TRIES:
            break
    found = batch if fit["status"] == "ok" else None
    return _row(search, **fit, batch=found, refuted=refuted)


def _row(search: Search, **found: Any) -> MaxBatchRow:
    """Return the row of a search; `found` has its status and reason, and may have more."""
    workload, options, mesh, implementation = key_of(search.cell)
    known = {"batch": None, "refuted": [], "peak_bytes": None, **found}
    too_large = min([*known["refuted"], *filter(None, [search.too_large])], default=None)
    next_bytes = search.known.get(too_large or 0, math.inf)
    row = {
        "implementation": implementation, "workload": workload, "mesh": mesh, "options": options,
        "limit_bytes": search.limit.bytes, "limit_is": search.limit.words,
        "predicted_bytes": search.known.get(known["batch"] or 0),
        "next_batch": too_large, "next_bytes": next_bytes if math.isfinite(next_bytes) else None,
        "compilations": search.compilations, "contents": search.contents, **known,
    }  # fmt: skip
    return cast("MaxBatchRow", row)


def valid(search: Search, stored: Iterable[MaxBatchRow]) -> MaxBatchRow | None:
    """Return the stored row that still answers a search, if there is one.

    It has the same limit and contents, and states which batch fits, or that none is predicted to.
    Any other outcome might be better the next time.
    """
    for row in stored:
        same = row["limit_bytes"] == search.limit.bytes and row["contents"] == search.contents
        answers = search.contents is not None and row["status"] in ("ok", "predicted oom")
        if key(row) == key_of(search.cell) and same and answers:
            return row
    return None


def _key(cell: Cell, contents: Contents) -> str | None:
    try:
        return contents.key(cell)
    except (BadInput, KeyError):  # a file is missing; the search will report that
        return None


def prove_fit(cell: Cell, catalogue: Catalogue) -> Fit:
    """Run some steps of a cell with one process and no variant on its mesh, on this machine."""
    before = oom_kills.count_kills()
    environment = worker_environment(catalogue["platform"], cell.block.mesh.size)
    command = (*module_command("bench.worker.answer.cell_requests"), "fit")
    answer = ask(command, json.dumps(cell_request(cell, catalogue)), environment, TIMEOUT_S)
    if answer.code == 0:
        return cast("Fit", json.loads(answer.out))
    if answer.code is None:
        return Fit(status="timeout", reason=f"no answer in {TIMEOUT_S:.0f} s", peak_bytes=None)
    killed = answer.ending == "was killed by SIGKILL"
    by_kernel = killed and oom_kills.killed_by_kernel(before) is not False
    if by_kernel or OUT_OF_MEMORY.search("\n".join(answer.tail)):
        return Fit(status="oom", reason=f"its process {answer.ending}", peak_bytes=None)
    return Fit(status="crashed", reason=f"its process {answer.blame}", peak_bytes=None)
