"""Arguments and options that several commands share, and their common handling."""

from __future__ import annotations

import contextlib
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.measure.run_folder import find_run, name_fault, own_files
from bench.records import derived_files, store
from bench.records.paths import REPORTS

if TYPE_CHECKING:
    from rich.console import Console

Keyword = Annotated[
    str, typer.Option("-k", metavar="EXPRESSION", help="Only what this selects; see `run --help`.")
]
Files = list[str] | None

SHARED = """
  run (RUN): Name or folder of a stored run; `last` is the newest.
  implementation_path (FILE): Implementation outside implementations/; repeatable.
  workload_path (FILE): Workload outside bench/contract/workloads/; repeatable.
"""
"""Help of parameters that several commands have, in the form of a docstring's `Args:`."""

_ENTRY = re.compile(r"^  (\w+)(?: \((.+?)\))?: (.+(?:\n {4}.+)*)", re.MULTILINE)
"""A parameter, its placeholder in the help, and its meaning."""


def add_help(command: Any) -> None:
    """Give a command's parameters the help of its docstring's `Args:`, or else of SHARED."""
    command.help, _, entries = command.help.partition("\n\nArgs:\n")
    command.short_help = command.help.partition("\n\n")[0]  # Typer would cut a sentence
    helps = {name: rest for name, *rest in _ENTRY.findall(SHARED + entries)}
    for parameter in command.params:
        if parameter.name in helps:
            placeholder, meaning = helps[parameter.name]
            parameter.help, parameter.metavar = " ".join(meaning.split()), placeholder or None
            parameter.secondary_opts = []  # a flag has no opposite, `--no-flag`


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console without highlighting; rich is loaded here, only by commands that print."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            """Go on without a reader, as of `| head`; Rich would exit with 1."""
            with contextlib.suppress(SystemExit):
                super().on_broken_pipe()

    if not os.environ.get("COLUMNS", "80").strip("0"):  # unknown; Rich would print nothing
        del os.environ["COLUMNS"]
    return _Console(stderr=stderr, highlight=False)


def files_of(
    run: Path, implementations: list[str] | None, workloads: list[str] | None
) -> tuple[list[str], list[str]]:
    """Return the paths of implementations and workloads that are given, or else the run's own."""
    own = own_files(run)
    return (
        implementations or own.get("implementation_path", []),
        workloads or own.get("workload_path", []),
    )


def new_folder(faults: list[str], run: str, kind: str) -> Path:
    """Return a new folder in reports/, named by `--run` or else by kind and time; add any fault."""
    name = run or f"{kind}_{datetime.now(UTC):%Y-%m-%d_%H%M}"
    if fault := name_fault(name):
        faults.append(f"--run: {fault}")
    return REPORTS / name


def load_run(name: str) -> store.Run:
    """Load a stored run by its name or folder; list damaged parts of it on stderr."""
    run = store.load(find_run(name))
    warn_of_damage(run)
    return run


def warn_of_damage(run: store.Run) -> None:
    """List on stderr the damaged parts of a stored run, which were left out."""
    for damage in (*run.damaged, *derived_files.damage(run.directory)):
        typer.echo(f"warning: {run.directory.as_posix()}: set aside: {damage}", err=True)
