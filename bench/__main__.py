"""`python -m bench`: the command line."""

import pkgutil
import sys
import traceback
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated

import typer

from bench import __version__, commands
from bench.commands.exits import FAILED, CommandGroup, exit_codes

app = typer.Typer(
    cls=CommandGroup,
    help="Find out which way of writing a distributed JAX train step is fastest on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit


VERSION = typer.Option(
    "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
)


@app.callback()
def _options(version: Annotated[bool, VERSION] = False) -> None:
    """Take the options before a command's name."""


for name in (module.name for module in pkgutil.iter_modules(commands.__path__)):
    module = import_module(f"{commands.__name__}.{name}")
    if hasattr(module, name):
        settings = getattr(module, "SETTINGS", {"epilog": exit_codes()})
        app.command(**settings)(getattr(module, name))


def main() -> None:
    """Run the command that was typed; an unexpected error exits with FAILED, not Python's 1."""
    if isinstance(sys.stdout, TextIOWrapper):  # its encoding may lack characters, as latin-1 does
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except Exception:  # noqa: BLE001 - Python's own code for it is 1, which has a meaning here
        traceback.print_exc()
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
