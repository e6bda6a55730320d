"""`python -m bench regress BASE_REV`: gate a change to implementations."""

from __future__ import annotations

import typer

from bench.commands import run
from bench.commands.exits import refuse
from bench.commands.run import run_pytest

SETTINGS = run.SETTINGS


def regress(context: typer.Context) -> None:
    """Gate a change: compare the working tree with an earlier revision. See `regress --help`."""
    from bench.plan.options import regress_help_text

    if {"-h", "--help"} & set(context.args):
        typer.echo(regress_help_text(), nl=False)
        return
    revision, *options = context.args or [""]
    if not revision or revision.startswith("-"):
        refuse("name the revision to compare with first, as in: python -m bench regress main")
    raise typer.Exit(run_pytest([f"--base-revision={revision}", *options], "regress_plugin"))
