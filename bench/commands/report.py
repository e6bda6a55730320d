"""`python -m bench report RUN`: build a run's report again."""

from typing import Annotated

import typer

from bench.commands.shared_options import RunName, load_run


def report(
    run: RunName,
    all_plots: Annotated[
        bool, typer.Option("--all-plots", help="Draw every print plot, even if that takes minutes.")
    ] = False,
) -> None:
    """Build a run's report again from its stored measurements."""
    from bench.present.report_files import build

    page = build(load_run(run), all_plots=all_plots)
    typer.echo(f"report: {page.as_posix()}")
