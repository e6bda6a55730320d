"""`python -m bench maxbatch RUN`: the largest batch of each of a run's cells that fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.commands.exits import FAILED, refuse, warn
from bench.commands.shared_options import Files
from bench.measure.catalogue import CatalogueError, faults_of_files, read_catalogue
from bench.measure.run_folder import find_run
from bench.plan.content_keys import Contents
from bench.plan.matrix import BadInput, collected
from bench.plan.selection import everything, selector
from bench.records import numbers, store
from bench.records.largest_batches import damage
from bench.records.rows import CellRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.project.compiled_programs import Program, Unread
    from bench.project.maxbatch.largest import Limit, Line
    from bench.records.cells import Cell
    from bench.records.largest_batches import MaxBatchRow
    from bench.records.messages import Catalogue, Fit

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip


def maxbatch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a stored run.")],
    expression: Annotated[
        str, typer.Option("-k", metavar="EXPRESSION", help="Cells to look at, as of `run`.")
    ] = "",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="What one device may hold, such as 16GiB (default: what it gives to a program; on "
            "CPU there is no default).",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Search also what an earlier call has found for this limit."),
    ] = False,
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Find the largest batch that fits, of each implementation that a run has proved.

    What a device would hold is predicted by compiling the step; the largest batch within the limit
    is then run for a few steps. Each is stored when it is found, and a later call goes on with the
    rest. `report` shows what was found.
    """
    # Other commands need not wait for these.
    from rich.console import Console  # noqa: PLC0415

    from bench.present import largest_batch_table  # noqa: PLC0415
    from bench.project.maxbatch import earlier_results, largest  # noqa: PLC0415
    from bench.records import largest_batches  # noqa: PLC0415

    files, workloads = tuple(implementation_path or ()), tuple(workload_path or ())
    try:
        faults = faults_of_files(files, workloads)
        folder = collected(faults, find_run, run) or Path()
        chosen = collected(faults, selector, expression) or everything
        asked = None if memory is None else collected(faults, bytes_of, memory)
        if faults:
            raise BadInput(faults)  # noqa: TRY301 - with the faults of all others
        cells = proved(folder, chosen)
        catalogue = read_catalogue(files, workloads)
        limit = limit_of(catalogue, asked)
        contents = Contents(catalogue)
        lines = earlier_results.hashed(
            largest.lines_of(earlier_results.plans(cells, contents)), contents
        )
        if not lines:
            raise BadInput([f"{folder.name}: no cell that is selected is of one process"])  # noqa: TRY301
        stored = largest_batches.read(folder)
    except (BadInput, store.StoreError, OSError) as error:
        refuse(str(error))
    except CatalogueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
    found = [] if again else earlier_results.kept(lines, limit, stored)
    if found:
        kept = f"{len(found)} of {numbers.count(len(lines), 'cell')} kept from before"
        typer.echo(f"{kept}; --again searches them again")
    known = {largest_batches.key(row) for row in found}
    left = [line for line in lines if largest_batches.key_of(line.cell) not in known]
    try:
        for row in _searched(left, limit, catalogue):
            try:
                largest_batches.write(folder, [row])
            except OSError as error:
                refuse(f"{(folder / largest_batches.FILE).as_posix()} cannot be written: {error}")
            typer.echo(largest_batch_table.line(row))
            found.append(row)
    except KeyboardInterrupt:
        done = f"{len(found)} of {numbers.count(len(lines), 'cell')} stored"
        typer.echo(f"interrupted: {done}; the same command, without --again, goes on", err=True)
        raise
    largest_batch_table.show(Console(highlight=False), sorted(found, key=largest_batches.key))
    typer.echo(
        f"stored: {(folder / largest_batches.FILE).as_posix()} (`bench report {run}` shows it)"
    )


def _searched(
    lines: Sequence[Line],
    limit: Limit,
    catalogue: Catalogue,
) -> Iterator[MaxBatchRow]:
    """Rows as they are found, mesh by mesh; what is done meanwhile is shown on stderr."""
    from rich.console import Console  # noqa: PLC0415

    from bench.project.compiled_programs import programs  # noqa: PLC0415
    from bench.project.maxbatch import fit_proof, largest, search_progress  # noqa: PLC0415

    shown = search_progress.Display(Console(stderr=True, highlight=False), len(lines))

    def read(cells: Sequence[Cell]) -> list[Program | Unread]:
        with shown.compiling(cells):
            return programs(cells, catalogue, here=True)

    def prove(cell: Cell) -> Fit:
        with shown.proving(cell):
            return fit_proof.prove(cell, catalogue)

    for mesh in dict.fromkeys(line.cell.block.mesh for line in lines):
        of_mesh = [line for line in lines if line.cell.block.mesh == mesh]
        for row in largest.largest(of_mesh, limit, read, prove):
            shown.done += 1
            yield row


def proved(folder: Path, chosen: Callable[[str], bool]) -> list[CellRow]:
    """The run's cells that are ok and chosen by their names.

    Raises:
      BadInput: there is none.
      StoreError: the run's folder cannot be read.
    """
    stored = store.read(folder)
    warn(folder, [*stored.damaged, *damage(folder)])
    found = [row for row in stored.cells() if row["status"] == "ok" and chosen(row["cell"])]
    if not found:
        lost = "; all launches are set aside, see the warnings" if stored.damaged else ""
        raise BadInput([f"{folder.name}: no cell is ok, and selected by -k{lost}"])
    return found


def bytes_of(text: str) -> float:
    """Read `16GiB`, `80G` or a plain number.

    Raises:
      BadInput: it is none of these, or 0.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?|[KMGT]i)B?", text)
    if found is None:
        raise BadInput([f"--memory: {text!r} is not a number of bytes; write it as 16GiB or 80G"])
    size = float(found[1]) * _UNITS[found[2]]
    if size == 0:
        raise BadInput([f"--memory: {text} has to be above 0, such as 16GiB"])
    return size


def limit_of(catalogue: Catalogue, asked: float | None) -> Limit:
    """What one device may hold, and why.

    Raises:
      BadInput: nobody says.
    """
    from bench.project.maxbatch.largest import Limit  # noqa: PLC0415

    if asked is not None:
        return Limit(asked, "as asked for")
    has = catalogue["device_memory_bytes"]
    if has is not None:
        return Limit(has, "what the device gives to a program")
    why = f"{catalogue['device_kind']} devices do not say what they give to a program"
    if catalogue["platform"] == "cpu":
        why = "a CPU device is a part of the host, and nothing limits what it may hold"
    raise BadInput([f"--memory: say what one device may hold, as --memory 2GiB: {why}"])
