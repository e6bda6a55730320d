"""`python -m bench maxbatch RUN`: the largest batch of each of a run's cells that fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from bench import store
from bench.catalogue import CatalogueError, faults_of_files, read_catalogue
from bench.engine import find_run
from bench.exits import FAILED, refuse, warn
from bench.matrix import BadInput
from bench.rows import cell_of
from bench.selection import selector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.capacity.largest import Limit, Line
    from bench.protocol import Catalogue

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}  # fmt: skip

_SHARE = 0.8
"""Of the memory that a host has free, for all of its virtual devices."""


def maxbatch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a stored run.")],
    expression: Annotated[
        str, typer.Option("-k", metavar="EXPRESSION", help="Cells to look at, as of `run`.")
    ] = "",
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="What one device may hold, such as 16GiB (default: what it says it has; on CPU, "
            "its share of 80 % of what the host has free).",
        ),
    ] = None,
    implementation_path: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="As of `run`; repeatable.")
    ] = None,
    workload_path: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="As of `run`; repeatable.")
    ] = None,
) -> None:
    """Find the largest batch that fits, of each implementation that a run has proved.

    What a device would hold is predicted by compiling the step; the largest batch within the limit
    is then run for a few steps. `report` shows what was found.
    """
    # Other commands need not wait for these.
    from rich.console import Console  # noqa: PLC0415

    from bench.capacity import largest, proof, rows, table  # noqa: PLC0415
    from bench.project.programs import programs  # noqa: PLC0415

    files, workloads = tuple(implementation_path or ()), tuple(workload_path or ())
    try:
        folder = find_run(run)
        lines = lines_of(folder, expression, files, workloads)
        asked = None if memory is None else bytes_of(memory)
        catalogue = read_catalogue(files, workloads)
    except (BadInput, store.StoreError) as error:
        refuse(str(error))
    except CatalogueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
    found = []
    for own in {line.cell.block.mesh: None for line in lines}:
        of_mesh = [line for line in lines if line.cell.block.mesh == own]
        limit = limit_of(catalogue, own.size, asked)
        for row in largest.largest(
            of_mesh,
            limit,
            lambda cells: programs(cells, files, workloads, catalogue, here=True),
            lambda cell: proof.prove(cell, catalogue["platform"], files, workloads),
        ):
            typer.echo(table.line(row))
            found.append(row)
    rows.write(folder, found)
    table.show(Console(highlight=False), sorted(found, key=rows.key))
    typer.echo(f"stored: {(folder / rows.FILE).as_posix()} (`bench report {run}` shows it)")


def lines_of(
    folder: Path, expression: str, implementations: Sequence[str], workloads: Sequence[str]
) -> list[Line]:
    """What is to be searched, as bench.capacity.largest has it.

    Raises:
      BadInput: nothing is selected, or a file or the expression cannot be read.
      StoreError: the run's folder cannot be read.
    """
    from bench.capacity.largest import lines_of  # noqa: PLC0415

    faults = faults_of_files(implementations, workloads)
    try:
        chosen = selector(expression)
    except ValueError as error:
        faults.append(str(error))
    if faults:
        raise BadInput(faults)
    stored = store.read(folder)
    warn(folder, stored.damaged)
    proved = [row for row in stored.cells() if row["status"] == "ok"]
    found = lines_of(
        {
            cell_of(row): memory["total_bytes"] if (memory := row.get("memory")) else None
            for row in proved
            if chosen(row["cell"])
        }
    )
    if not found:
        raise BadInput([f"{folder.name}: no cell is ok, of one process, and selected by -k"])
    return found


def bytes_of(text: str) -> float:
    """Read `16GiB`, `80G` or a plain number.

    Raises:
      BadInput: it is none of these.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?|[KMGT]i)B?", text)
    if found is None or float(found[1]) == 0:
        raise BadInput([f"--memory: {text!r} is not a number of bytes; write it as 16GiB or 80G"])
    return float(found[1]) * _UNITS[found[2]]


def limit_of(catalogue: Catalogue, devices: int, asked: float | None) -> Limit:
    """What one of the mesh's devices may hold, and why."""
    from bench.capacity.largest import Limit  # noqa: PLC0415

    has = catalogue["device_memory_bytes"]
    if asked is not None:
        return Limit(asked, "as asked for")
    if has is not None:
        return Limit(has, "what the device gives to a program")
    import psutil  # noqa: PLC0415

    free = psutil.virtual_memory().available
    return Limit(_SHARE * free / devices, "a share of what the host had free")
