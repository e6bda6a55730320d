"""`python -m bench inspect CELL`: the layout of a cell's arrays over the devices."""

from bench.commands.shared_options import Files, plain_console


def inspect(cell: str, implementation_path: Files = None, workload_path: Files = None) -> None:
    """Show the layout of a cell's arrays: mesh, every parameter's shards, bytes per device.

    Args:
      cell (CELL): Name of a cell, as --dry-run and reports show it.
    """
    from bench.measure.catalogue import read_layout
    from bench.present.layout_drawing import show

    show(plain_console(), read_layout(cell, implementation_path or (), workload_path or ()))
