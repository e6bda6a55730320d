"""`python -m bench doctor`: hardware, what can be measured on it, and what to install or set."""

import json
from typing import Annotated

import typer

from bench.commands.shared_options import plain_console


def doctor(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """Show this machine's devices, drivers, clocks, limits and users, and what they allow.

    Args:
      as_json: Print all that was found as JSON instead.
    """
    from bench.measure.machine_check import examine
    from bench.present.machine_screen import show

    machine = examine()
    if as_json:
        typer.echo(json.dumps(machine, indent=2))
    else:
        show(plain_console(), machine)
