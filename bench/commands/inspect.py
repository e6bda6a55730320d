"""`python -m bench inspect CELL`: where a cell's arrays lie, drawn. Imports no jax."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.measure.catalogue import faults_of_files, read_catalogue
from bench.measure.environment import worker_environment
from bench.measure.processes.ask import ask
from bench.plan.matrix import BadInput, make_plan
from bench.plan.options import Options
from bench.records import numbers
from bench.records.cells import Cell, StepOptions
from bench.records.messages import ArrayLayout, CellRequest, Inspection, cell_request

COMMAND = (sys.executable, "-m", "bench.worker.answer.inspection")
TIMEOUT_S = 600.0

_WORDS = 5
"""Of a cell's name: workload-size / mesh / batch / options / implementation."""

_MOST = 8
"""Parts along a dimension that are drawn; of more, the first and the last."""


class InspectionError(Exception):
    """The cell could not be built; the message ends with the last lines of its process."""


def inspect(
    name: str, implementation_paths: Sequence[str] = (), workload_paths: Sequence[str] = ()
) -> Inspection:
    """Build a cell in a process of its own and ask where its arrays lie.

    Args:
      name: of the cell, such as `gpt2-nano/data=2,model=2/b16/fp32/NAME`.
      implementation_paths: files outside implementations/.
      workload_paths: files outside bench/contract/workloads/.

    Raises:
      BadInput: it is not the name of a cell that could be measured; says why.
      CatalogueError: nothing could be found out.
      InspectionError: it cannot be built.
    """
    faults = faults_of_files(implementation_paths, workload_paths)
    options = _options(name, implementation_paths, workload_paths)
    catalogue = read_catalogue(implementation_paths, workload_paths)
    cells = make_plan(options, catalogue, faults).cells
    cell = next(c for c in cells if c.implementation == options.implementations[0])
    request = cell_request(cell, catalogue)
    return _ask(request, catalogue["platform"], cell)


def _options(name: str, implementations: Sequence[str], workloads: Sequence[str]) -> Options:
    """The options of a run of this cell alone."""
    words = name.split("/")
    if len(words) != _WORDS:
        example = "gpt2-nano/data=2/b16/fp32/python_loop"
        raise BadInput([f"{name!r} is not a cell; cells are named like {example}"])
    workload, mesh, batch, text, implementation = words
    try:
        step = StepOptions.parse(text)
    except ValueError as error:
        raise BadInput([str(error)]) from error
    if step.variant:
        raise BadInput([f"{name!r}: a variant does not change where arrays lie; leave it out"])
    return Options(
        workloads=(workload,),
        implementations=(implementation,),
        meshes=(mesh,),
        batch_sizes=(batch.removeprefix("b"),),
        precision=(step.precision,),
        microbatches=(str(step.microbatches),),
        remat=step.remat,
        clip_norm=None if step.clip_norm is None else str(step.clip_norm),
        scaling="strong",
        implementation_path=tuple(implementations),
        workload_path=tuple(workloads),
    )


def _ask(request: CellRequest, platform: str, cell: Cell) -> Inspection:
    environment = worker_environment(platform, cell.block.mesh.size)
    answer = ask(COMMAND, json.dumps(request), environment, TIMEOUT_S)
    if answer.code is None:
        raise InspectionError(f"{cell.name} was not built within {TIMEOUT_S:.0f} s")
    if answer.code:
        tail = "\n".join(f"  {line}" for line in answer.last_lines(10))
        raise InspectionError(f"{cell.name} cannot be built. Its last lines:\n{tail}")
    return cast("Inspection", json.loads(answer.out))


def show(console: Console, found: Inspection) -> None:
    """Print the mesh, every parameter, how the divided ones are divided, and totals a device."""
    axes = ", ".join(f"{name}={size}" for name, size in found["axes"])
    console.print(Text(f"Mesh {axes}: device ids, {found['axes'][-1][0]} across", style="bold"))
    console.print(_grid(found["devices"]))
    if found["unsupported"]:
        console.print(f"\nunsupported: {found['unsupported']}")
        return
    console.print(Text("\nParameters", style="bold"))
    console.print(_parameters(found["parameters"]))
    for array in _examples(found["parameters"]):
        console.print(
            Text(f"\n{array['path']}, {_sizes(array['shape'])}: who holds what", style="bold")
        )
        console.print(_drawing(array))
    console.print(Text("\nBytes a device", style="bold"))
    console.print(_totals(found))


def _grid(rows: Sequence[Sequence[object]]) -> Table:
    table = Table(show_header=False, show_lines=True)
    for _ in rows[0]:
        table.add_column(justify="center")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _parameters(arrays: Sequence[ArrayLayout]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name", overflow="fold")
    for heading in ("shape", "dtype", "parts"):
        table.add_column(heading, no_wrap=True)
    for heading in ("copies", "whole", "a device"):
        table.add_column(heading, justify="right", no_wrap=True)
    for array in arrays:
        table.add_row(
            array["path"],
            _sizes(array["shape"]) or "scalar",
            array["dtype"],
            _sizes([len(starts) for starts in _starts(array)])
            if len(array["parts"]) > 1
            else "whole",
            str(max(len(part["devices"]) for part in array["parts"])),
            numbers.bytes_(array["bytes"]),
            numbers.bytes_(array["device_bytes"]),
        )
    return table


def _sizes(sizes: Sequence[int]) -> str:
    """`16x3x8`, with a proper sign: along each dimension."""
    return numbers.TIMES.join(map(str, sizes))


def _starts(array: ArrayLayout) -> list[list[int]]:
    """Where the parts along each dimension begin."""
    dimensions = range(len(array["shape"]))
    return [sorted({part["index"][d][0] for part in array["parts"]}) for d in dimensions]


def _examples(arrays: Sequence[ArrayLayout]) -> Iterator[ArrayLayout]:
    """The largest array of each way in which arrays are divided."""
    seen = set()
    for array in sorted(arrays, key=lambda array: -array["bytes"]):
        counts = tuple(map(len, _starts(array)))
        way = counts, tuple(sorted(tuple(part["devices"]) for part in array["parts"]))
        if len(array["parts"]) > 1 and way not in seen:
            seen.add(way)
            yield array


def _drawing(array: ArrayLayout) -> Table:
    """The array's parts with the devices that hold them: its last dimension across, others down."""
    starts = _starts(array)
    divided = [d for d, own in enumerate(starts) if len(own) > 1]
    across = divided[-1] if divided[-1] == len(starts) - 1 or len(divided) > 1 else None
    down = next((d for d in reversed(divided) if d != across), None)
    holders = {
        tuple(part["index"][d][0] for d in divided): part["devices"] for part in array["parts"]
    }
    rows = []
    for row in _shown(starts[down]) if down is not None else [None]:
        cells = []
        for column in _shown(starts[across]) if across is not None else [None]:
            key = tuple(
                column if d == across else row if d == down else starts[d][0] for d in divided
            )
            cells.append(_holders(holders.get(cast("tuple[int, ...]", key))))
        rows.append(cells)
    return _grid(rows)


def _shown(starts: Sequence[int]) -> list[int | None]:
    if len(starts) <= _MOST:
        return list(starts)
    return [*starts[: _MOST - 2], None, starts[-1]]


def _holders(devices: Sequence[int] | None) -> str:
    return "..." if devices is None else " ".join(map(str, devices))


def _totals(found: Inspection) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("device")
    parts = ("parameters", "optimizer and others", "batch", "together")
    for heading in parts:
        table.add_column(heading, justify="right", no_wrap=True)
    sizes = found["device_bytes"]
    for device in (str(d) for row in found["devices"] for d in row):
        params, state, batch = (
            sizes[name].get(device, 0) for name in ("parameters", "state", "batch")
        )
        row = (params, state - params, batch, state + batch)
        table.add_row(device, *map(numbers.bytes_, row))
    return table
