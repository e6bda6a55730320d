"""Arguments and options that several commands share, and their common handling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.measure.run_folder import find_run
from bench.records import derived_files, store

if TYPE_CHECKING:
    from collections.abc import Iterable

RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Name or folder of a stored run; `last` is the newest.",
        show_default=False,
    ),
]
Keyword = Annotated[
    str, typer.Option("-k", metavar="EXPRESSION", help="Only what this selects; see `run --help`.")
]
ImplementationFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--implementation-path",
        metavar="FILE",
        help="Implementation outside implementations/; repeatable.",
    ),
]
WorkloadFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--workload-path",
        metavar="FILE",
        help="Workload outside bench/contract/workloads/; repeatable.",
    ),
]


def load_run(name: str) -> store.Run:
    """Load a stored run by its name or folder; list damaged parts of it on stderr."""
    run = store.load(find_run(name))
    warn_of_damage(run.directory, run.damaged)
    return run


def warn_of_damage(folder: Path, damaged: Iterable[store.Damage]) -> None:
    """List on stderr the damaged parts of a stored run, which were left out."""
    for damage in (*damaged, *derived_files.damage(folder)):
        typer.echo(f"warning: {folder.as_posix()}: set aside: {damage}", err=True)
