"""Exit codes of the commands beside pytest's, how bad input is refused, and damage is told of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from bench.records import largest_batches as max_batches

if TYPE_CHECKING:
    from bench.records.store import Damage, Run

FAILED, BAD_INPUT, INTERRUPTED = 3, 4, 130

_CODES = {
    0: "done",
    FAILED: "Lockstep itself failed",
    BAD_INPUT: "bad input, nothing was done",
    INTERRUPTED: "interrupted",
}
"""Of every command, unless it says otherwise. `run` and `regress` list theirs in bench.plan.options."""

# Click's own code for words that it cannot read is 2, which is `interrupted` of a run. The base of
# all such errors is public under no name that every typer has.
_USAGE_ERROR = typer.BadParameter.__mro__[1]
_USAGE_ERROR.exit_code = BAD_INPUT  # type: ignore[attr-defined]


def exit_codes(own: Mapping[int, str] | None = None) -> str:
    """The last line of a command's help; `own` are codes that mean something else there."""
    codes = sorted((_CODES | dict(own or {})).items())
    return f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in codes)}."


def refuse(message: str) -> NoReturn:
    """Say what was wrong, and end."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(BAD_INPUT)


def warned(run: Run) -> Run:
    """A stored run, after what of it is damaged was named on stderr."""
    warn(run.directory, [*run.damaged, *max_batches.damage(run.directory)])
    return run


def warn(folder: Path, damaged: Iterable[Damage]) -> None:
    """Name on stderr what of a stored run is damaged."""
    for damage in damaged:
        typer.echo(f"warning: {folder.as_posix()}: set aside: {damage}", err=True)
