"""The layout of a cell's arrays on the terminal: mesh, parameters, shards, bytes per device."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from bench.present import terminal
from bench.records import numbers
from bench.records.messages import ArrayLayout, Inspection


def show(console: Console, layout: Inspection) -> None:
    """Print the mesh, all parameters with their shards, and bytes per device."""
    axes = ", ".join(f"{name}={size}" for name, size in layout["axes"])
    console.print(Text(f"Mesh {axes}: device ids, {layout['axes'][-1][0]} across", style="bold"))
    grid = Table(*(Column(justify="center") for _ in layout["devices"][0]), show_header=False)
    grid.show_lines = True
    for row in layout["devices"]:
        grid.add_row(*map(str, row))
    console.print(grid)
    if layout["unsupported"]:
        console.print(f"\nunsupported: {layout['unsupported']}")
        return
    console.print(Text("\nParameters", style="bold"), _parameters(layout["parameters"]))
    console.print(Text("\nBytes per device", style="bold"), _totals(layout))


def _parameters(arrays: Sequence[ArrayLayout]) -> Table:
    headings = "name", ">shape", ">dtype", ">shards", ">copies", ">whole", ">per device"
    table = terminal.table(*headings)
    for array in arrays:
        dimensions = zip(*(part["index"] for part in array["parts"]), strict=True)
        shards = _sizes([len({start for start, _ in own}) for own in dimensions])
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
