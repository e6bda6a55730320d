"""`python -m bench gallery`: the index of published runs."""

import typer

from bench.records.paths import REPORTS


def gallery() -> None:
    """Index the published runs: write reports/README.md and reports/index.html.

    A run is published once git tracks its folder in reports/. Outside of a git checkout, every run
    there is listed.
    """
    from bench.present.gallery import index

    page, entries = index.build(REPORTS)
    for entry in entries:
        typer.echo(f"{entry.folder}: {entry.headline}")
    typer.echo(f"gallery: {page.as_posix()}")
