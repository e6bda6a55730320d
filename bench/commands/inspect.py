"""`python -m bench inspect CELL`: where a cell's arrays lie."""

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
    """Show where a cell's arrays lie: the mesh, every parameter, and bytes on each device."""
    from rich.console import Console

    from bench.measure.array_layout import read_layout
    from bench.present.layout_drawing import show

    layout = read_layout(cell, implementation_path or (), workload_path or ())
    show(Console(highlight=False), layout)
