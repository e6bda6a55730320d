"""Exit codes of the commands, and the errors that end a command with a message."""

import argparse
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from bench.commands.shared_options import add_help
from bench.measure.processes.guarded import ChildError
from bench.plan.option_values import BadInput
from bench.records.files import DISK_FULL, NotStoredError
from bench.records.git_files import RevisionError
from bench.records.store import StoreError

FAILED, BAD_INPUT, INTERRUPTED = 3, 4, 130

_CODES = {
    0: "done",
    FAILED: "Lockstep itself failed",
    BAD_INPUT: "bad input, nothing was done",
    INTERRUPTED: "interrupted",
}
"""Exit codes of every command that does not define its own. bench/plan/help_pages.toml lists those
of the commands with the options of a run."""


def exit_codes(own: Mapping[int, str] | None = None) -> str:
    """Return the last line of a command's help; `own` are codes with another meaning there."""
    codes = sorted((_CODES | dict(own or {})).items())
    return f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in codes)}."


def message(error: Exception) -> str:
    """Return the text of one fault, or a list of several."""
    if isinstance(error, OSError) and error.strerror:
        place = error.filename2 or error.filename  # of a write, Python knows none
        return f"{place}: {error.strerror.lower()}" if place else error.strerror.lower()
    if isinstance(error, BadInput) and len(error.faults) > 1:
        return "\n  - ".join([f"{len(error.faults)} things are wrong:", *error.faults])
    return str(error)


def plain(fault: str) -> str:
    """Reword argparse's message about a command line in the style of all other messages."""
    fault = fault.removeprefix("argument ")
    return re.sub(r"ignored explicit argument (.*)", r"it takes no value, but \1 was given", fault)


def refuse(text: str, code: int = BAD_INPUT) -> NoReturn:
    """End the command and say why; with FAILED, Lockstep or a process that it started failed."""
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(code)


@contextmanager
def _ending_on_errors() -> Iterator[None]:
    try:
        yield
    except (BadInput, StoreError, RevisionError, PermissionError) as error:
        refuse(message(error))
    except (ChildError, NotStoredError) as error:
        refuse(str(error), FAILED)
    except OSError as error:
        full = error.errno in DISK_FULL
        if not (full or error.filename):  # about no file, but a pipe or a connection
            raise
        refuse(message(error), FAILED if full else BAD_INPUT)
    except typer.TyperException as error:  # a command line that Typer cannot parse
        if type(error).__name__ == "NoArgsIsHelpError":  # the message is the whole help
            typer.echo(error.format_message(), err=True)
            raise typer.Exit(BAD_INPUT) from None
        refuse(_in_one_line(error))


def _in_one_line(error: Any) -> str:
    """Reword Typer's message about a command line in the style of all other messages."""
    said: str = error.format_message().rstrip(".")
    if faults := getattr(error.__cause__, "errors", None):  # pydantic's text leaves out the value
        given = faults()[0]["input"]
        said = said.replace(": Input should be", f": {given!r}; it should be").partition(",")[0]
    said = re.sub(r"Got (un.*) argument\(s\) \((.*)\)", r"\1 argument: \2", said)
    if getattr(error, "ctx", None) and not said.endswith("?"):  # else it already suggests a name
        said += f"; see `{error.ctx.command_path} --help`"
    return said[:1].lower() + said[1:]


class OptionParser(argparse.ArgumentParser):
    """A parser that refuses a command line in the style of all other messages."""

    def error(self, message: str) -> NoReturn:
        """End the command, and say why."""
        refuse(plain(message))


class CommandGroup(TyperGroup):
    """The commands; any of their known errors ends a command with a message and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in self.commands.values():
            add_help(command)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command's name."""
        with _ending_on_errors():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's own options and run it."""
        with _ending_on_errors():
            return super().invoke(ctx)


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Treat termination signals like Ctrl-C: end the workers and build the report."""
    from bench.measure.cluster.leader import TERMINATION

    handler = signal.default_int_handler  # raises KeyboardInterrupt
    before = {number: signal.signal(number, handler) for number in TERMINATION}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
