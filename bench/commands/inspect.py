"""`python -m bench inspect CELL`: the layout of a cell's arrays over the devices."""

from typing import Annotated

import typer

from bench.commands.shared_options import ImplementationFiles, WorkloadFiles


def inspect(
    cell: Annotated[
        str,
        typer.Argument(metavar="CELL", help="Name of a cell, as --dry-run and reports show it."),
    ],
    implementation_path: ImplementationFiles = None,
    workload_path: WorkloadFiles = None,
) -> None:
    """Show the layout of a cell's arrays: mesh, every parameter's shards, bytes per device."""
    from rich.console import Console

    from bench.measure.array_layout import read_layout
    from bench.present.layout_drawing import show

    layout = read_layout(cell, implementation_path or (), workload_path or ())
    show(Console(highlight=False), layout)
