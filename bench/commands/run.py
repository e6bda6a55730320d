"""`python -m bench run`: prove and time implementations. Each cell is a pytest item."""

import os
import warnings
from pathlib import Path

import typer

import bench
from bench.plan.options import help_page

PLUGINS = "bench.commands.pytest_plugin"

SETTINGS = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
    "add_help_option": False,
}
"""pytest reads the options, and bench.plan.options describes them."""


def run(context: typer.Context) -> None:
    """Prove and time implementations, then write a report. `run --help` lists the options."""
    answer_help(context)
    raise typer.Exit(run_pytest(context.args))


def answer_help(context: typer.Context) -> None:
    """Print the command's help page and end, if its arguments ask for that."""
    if {"-h", "--help"} & set(context.args):
        typer.echo(help_page(context.info_name or ""), nl=False)
        raise typer.Exit


def run_pytest(arguments: list[str], *plugins: str) -> int:
    """Run the cells as pytest items, with further plugins; returns pytest's exit code."""
    if {"-V", "--version"} & set(arguments):  # pytest would print its own
        typer.echo(f"lockstep {bench.__version__}")
        return 0

    import pytest
    from pytest_benchmark.logger import PytestBenchmarkWarning

    from bench.commands.pytest_plugin import refusals

    # Other plugins and options in the environment might change the output or claim our options.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    # pytest-benchmark's table of all cells is too long to read, so it is shown on request only.
    table_options = ("--benchmark-compare", "--benchmark-columns", "--benchmark-verbose")
    wants_table = any(word.startswith(table_options) for word in arguments)
    words = [
        *("-c", str(Path(__file__).with_name("pytest_plugin") / "pytest.ini")),
        *("-p", "pytest_benchmark.plugin", "-p", f"{PLUGINS}.run_plugin"),
        *(word for plugin in plugins for word in ("-p", f"{PLUGINS}.{plugin}")),
        "--capture=no",
        "-q" if {"--collect-only", "--co"} & set(arguments) else "-qq",
        *([] if wants_table else ["--benchmark-quiet"]),
        # A path might contain a `[` or `::`, which pytest takes for the name of a test.
        *("--noconftest", "--pyargs", f"{PLUGINS}.cells_test"),
        "--benchmark-storage=file:///dev/null",
    ]
    # If no cell is ok, it warns that there is nothing to save; the summary says so as well.
    warnings.filterwarnings("ignore", category=PytestBenchmarkWarning)
    for word in arguments:
        # A word that begins with @ would be a file of arguments to pytest.
        if word.startswith("@") and words[-1].startswith("--") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return int(pytest.main(words, [refusals]))
