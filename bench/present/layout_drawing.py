"""The layout of a cell's arrays on the terminal: mesh, parameters, shards, bytes per device."""

from collections.abc import Iterator, Sequence
from itertools import product

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from bench.present import terminal
from bench.records import numbers
from bench.records.messages import ArrayLayout, Inspection


def show(console: Console, layout: Inspection) -> None:
    """Print the mesh, all parameters, the shards of divided ones, and bytes per device."""
    axes = ", ".join(f"{name}={size}" for name, size in layout["axes"])
    console.print(Text(f"Mesh {axes}: device ids, {layout['axes'][-1][0]} across", style="bold"))
    console.print(_grid(layout["devices"]))
    if layout["unsupported"]:
        console.print(f"\nunsupported: {layout['unsupported']}")
        return
    console.print(Text("\nParameters", style="bold"), _parameters(layout["parameters"]))
    for array in _examples(layout["parameters"]):
        title = f"\n{array['path']}, {_sizes(array['shape'])}: devices that hold each shard"
        console.print(Text(title, style="bold"), _drawing(array))
    console.print(Text("\nBytes per device", style="bold"), _totals(layout))


def _grid(rows: Sequence[Sequence[object]]) -> Table:
    centred = (Column(justify="center") for _ in rows[0])
    table = Table(*centred, show_header=False, show_lines=True)
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _parameters(arrays: Sequence[ArrayLayout]) -> Table:
    headings = "name", ">shape", ">dtype", ">shards", ">copies", ">whole", ">per device"
    table = terminal.table(*headings)
    for array in arrays:
        shards = _sizes([len(starts) for starts in _starts(array)])
        table.add_row(
            terminal.plain(array["path"]),
            _sizes(array["shape"]) or "scalar",
            array["dtype"],
            shards if len(array["parts"]) > 1 else "whole",
            str(max(len(part["devices"]) for part in array["parts"])),
            numbers.bytes_(array["bytes"]),
            numbers.bytes_(array["device_bytes"]),
        )
    return table


def _sizes(sizes: Sequence[int]) -> str:
    """Sizes along each dimension: `16x3x8`, with a multiplication sign."""
    return numbers.TIMES.join(map(str, sizes))


def _starts(array: ArrayLayout) -> list[list[int]]:
    dimensions = range(len(array["shape"]))
    return [sorted({part["index"][d][0] for part in array["parts"]}) for d in dimensions]


def _examples(arrays: Sequence[ArrayLayout]) -> Iterator[ArrayLayout]:
    """Yield the largest array for each kind of sharding."""
    seen = set()
    for array in sorted(arrays, key=lambda array: -array["bytes"]):
        counts = tuple(map(len, _starts(array)))
        way = counts, tuple(sorted(tuple(part["devices"]) for part in array["parts"]))
        if len(array["parts"]) > 1 and way not in seen:
            seen.add(way)
            yield array


def _drawing(array: ArrayLayout) -> Table:
    """Return the shards with the devices that hold them.

    The last divided dimension runs across, unless it is the only one and others follow.
    """
    starts = _starts(array)
    holders = {
        tuple(start for start, _ in part["index"]): " ".join(map(str, part["devices"]))
        for part in array["parts"]
    }
    texts = [holders[shard] for shard in product(*starts)]
    *others, last = (len(own) for own in starts if len(own) > 1)
    columns = last if others or len(starts[-1]) > 1 else 1
    return _grid([texts[at : at + columns] for at in range(0, len(texts), columns)])


def _totals(layout: Inspection) -> Table:
    headings = "device", ">parameters", ">optimizer and others", ">batch", ">together"
    table = terminal.table(*headings)
    sizes = layout["device_bytes"]
    for device in (str(d) for row in layout["devices"] for d in row):
        params, state, batch = (
            sizes[name].get(device, 0) for name in ("parameters", "state", "batch")
        )
        row = (params, state - params, batch, state + batch)
        table.add_row(device, *map(numbers.bytes_, row))
    return table
