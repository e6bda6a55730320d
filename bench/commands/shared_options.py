"""Arguments and options that several commands share, and their common handling."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.measure.run_folder import find_run, own_files
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

_ENTRY = re.compile(r"^  (\w+)(?: \((.+?)\))?: (.+(?:\n {4}.+)*)", re.MULTILINE)
"""An entry of a docstring's `Args:`: a parameter, its placeholder in the help, and its meaning."""


def add_help(command: Any) -> None:
    """Give a command's parameters the help that its docstring says under `Args:`."""
    command.help, _, entries = command.help.partition("\n\nArgs:\n")
    told = {name: (placeholder, meaning) for name, placeholder, meaning in _ENTRY.findall(entries)}
    for parameter in command.params:
        if parameter.name in told:
            placeholder, meaning = told[parameter.name]
            parameter.help, parameter.metavar = " ".join(meaning.split()), placeholder or None
            parameter.secondary_opts = []  # a flag has no opposite, `--no-flag`


def files_of(
    run: Path, implementations: list[str] | None, workloads: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the implementations and workloads that are named, or else those of a run's user."""
    own = own_files(run)
    return (
        implementations or own.get("implementation_path", []),
        workloads or own.get("workload_path", []),
    )


def load_run(name: str) -> store.Run:
    """Load a stored run by its name or folder; list damaged parts of it on stderr."""
    run = store.load(find_run(name))
    warn_of_damage(run.directory, run.damaged)
    return run


def warn_of_damage(folder: Path, damaged: Iterable[store.Damage]) -> None:
    """List on stderr the damaged parts of a stored run, which were left out."""
    for damage in (*damaged, *derived_files.damage(folder)):
        typer.echo(f"warning: {folder.as_posix()}: set aside: {damage}", err=True)
