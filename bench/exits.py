"""Exit codes of the commands beside pytest's, and how bad input is refused."""

from __future__ import annotations

from typing import NoReturn

import typer

FAILED, BAD_INPUT = 3, 4


def refuse(message: str) -> NoReturn:
    """Say what was wrong, and end."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(BAD_INPUT)
