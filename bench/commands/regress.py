"""`python -m bench regress BASE_REV`: gate a change to implementations."""

import typer

from bench.commands import run
from bench.commands.exits import refuse
from bench.records.paths import as_typed

SETTINGS = run.SETTINGS


def regress(context: typer.Context) -> None:
    """Gate a change: compare the working tree with an earlier revision. See `regress --help`."""
    run.answer_help(context)
    revision, *options = context.args or [""]
    if not revision or revision.startswith("-"):
        refuse(f"the first argument is the revision to compare with: {as_typed('regress')} main")
    raise typer.Exit(run.run_pytest([f"--base-revision={revision}", *options], "regress_plugin"))
