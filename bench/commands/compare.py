"""`python -m bench compare RUN_A RUN_B`: compare two stored runs."""

from pathlib import Path

import typer

from bench.commands.shared_options import load_run, plain_console
from bench.plan.option_values import BadInput, share
from bench.records.paths import REPORTS


def compare(a: str, b: str, margin: str | None = None, output: Path | None = None) -> None:
    """Compare two stored runs, cell by cell: which cells became faster or slower in RUN_B?

    Args:
      a (RUN_A): Stored run to compare with.
      b (RUN_B): Stored run to compare.
      margin (PERCENT): Step-time difference that is too small to matter (default: the
        larger of the runs' margins).
      output (DIR): Folder for the pages (default: one in reports/).
    """
    from bench.present import comparison_report

    try:
        ignored = None if margin is None else share(margin)
    except ValueError as error:
        raise BadInput([f"--margin: {error}"]) from error
    runs = load_run(a), load_run(b)
    names = (run.directory.resolve().name for run in runs)
    folder = output or REPORTS / "_".join(["compare", *names])
    if folder.exists() and not folder.is_dir():
        raise BadInput([f"--output: {folder} is a file, not a folder"])
    compared = comparison_report.build(*runs, folder, ignored)
    comparison_report.show(plain_console(), compared)
    typer.echo(f"comparison: {(folder / 'compare.html').as_posix()}")
