"""`python -m bench report RUN`: build a run's report again."""

import typer

from bench.commands.shared_options import load_run, plain_console
from bench.records.files import storing


def report(run: str, all_plots: bool = False) -> None:
    """Build a run's report again from its stored measurements, and print its answer.

    Args:
      all_plots: Draw every print plot, even if that takes minutes.
    """
    from bench.analyse import cell_table
    from bench.present.closing_summary import print_summary
    from bench.present.report_files import build

    stored = load_run(run)
    found = cell_table.build(stored)
    with storing(stored.directory):
        page = build(stored, found, all_plots=all_plots)
    print_summary(plain_console(), stored, found)
    typer.echo(f"report: {page.as_posix()}")
