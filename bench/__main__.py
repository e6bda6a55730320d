"""`python -m bench`: run the benchmark, report, compare, open TensorBoard. Imports no jax."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path
from typing import Annotated

import pytest
import typer
from pytest_benchmark.logger import PytestBenchmarkWarning

from bench.commands.exits import FAILED, exit_codes, refuse, warned
from bench.commands.faults import faults
from bench.commands.gallery import gallery, publish
from bench.commands.maxbatch import maxbatch
from bench.commands.project import plan, project
from bench.commands.pytest_front import CELLS_FILE
from bench.commands.selftest import selftest
from bench.commands.shared_options import Files
from bench.commands.tensorboard import prune, traced_runs
from bench.measure.catalogue import CatalogueError
from bench.measure.run_folder import find_run
from bench.plan.matrix import BadInput, share
from bench.plan.options import help_text, regress_help_text
from bench.records import store
from bench.records.paths import PROFILES, REPORTS

app = typer.Typer(
    help="Which way of writing a distributed JAX train step is fastest here?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def run(context: typer.Context) -> None:
    """Prove and time implementations, then write a report. `run --help` lists the options."""
    if {"-h", "--help"} & set(context.args):
        typer.echo(help_text(), nl=False)
        return
    raise typer.Exit(run_pytest(context.args))


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def regress(context: typer.Context) -> None:
    """Gate a change: the working tree against an earlier revision. `regress --help` says how."""
    if {"-h", "--help"} & set(context.args):
        typer.echo(regress_help_text(), nl=False)
        return
    revision, *options = context.args or [""]
    if not revision or revision.startswith("-"):
        refuse("name first what to compare with, as in: python -m bench regress main")
    raise typer.Exit(
        run_pytest([f"--base-revision={revision}", *options], "bench.commands.regress")
    )


def run_pytest(arguments: list[str], *plugins: str) -> int:
    """Run the cells as pytest items, with more plugins; returns pytest's exit code."""
    # Other plugins of the environment would change the output, or claim options of ours.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    listing = {"--collect-only", "--co"} & set(arguments)
    # A table of every cell is too long to read; it is shown where it was asked for.
    tables = ("--benchmark-compare", "--benchmark-columns", "--benchmark-verbose")
    asked = any(word.startswith(tables) for word in arguments)
    own = [
        *("-c", str(CELLS_FILE.with_name("pytest.ini"))),
        *("-p", "pytest_benchmark.plugin", "-p", "bench.commands.pytest_front"),
        *(word for plugin in plugins for word in ("-p", plugin)),
        "--capture=no",
        "-q" if listing else "-qq",
        *([] if asked else ["--benchmark-quiet"]),
        str(CELLS_FILE),
    ]
    # It says that there is nothing to save where no cell is ok, which the summary says as well.
    warnings.filterwarnings("ignore", category=PytestBenchmarkWarning)
    return int(pytest.main([*own, *arguments]))


@app.command(epilog=exit_codes())
def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a stored run.")],
    all_plots: Annotated[
        bool,
        typer.Option(
            "--all-plots", help="Draw every plot for print, not only as many as are quick."
        ),
    ] = False,
) -> None:
    """Build a run's report again from its stored rows."""
    from bench.present.report_files import build  # noqa: PLC0415 (other commands need not wait for it)

    try:
        page = build(warned(store.load(find_run(run))), all_plots=all_plots)
    except (BadInput, store.StoreError) as error:
        refuse(str(error))
    typer.echo(f"report: {page.as_posix()}")


@app.command(epilog=exit_codes())
def compare(
    a: Annotated[str, typer.Argument(metavar="RUN_A", help="Stored run that is compared with.")],
    b: Annotated[str, typer.Argument(metavar="RUN_B", help="Stored run that is compared.")],
    margin: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Difference of step times that is too small to matter (default: the runs' own).",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the pages (default: in reports/)."),
    ] = None,
) -> None:
    """Compare two stored runs, cell by cell: what became faster or slower in RUN_B."""
    from rich.console import Console  # noqa: PLC0415 (other commands need not wait for these)

    from bench.present.comparison import build, comparison_terminal  # noqa: PLC0415

    try:
        asked = None if margin is None else share("--margin", margin)
        one, other = find_run(a), find_run(b)
        folder = output or REPORTS / f"compare_{one.resolve().name}_{other.resolve().name}"
        found = build(warned(store.load(one)), warned(store.load(other)), folder, asked)
    except (BadInput, store.StoreError, OSError) as error:
        refuse(str(error))
    comparison_terminal.show(Console(highlight=False), found)
    typer.echo(f"comparison: {(folder / 'compare.html').as_posix()}")


@app.command(epilog=exit_codes())
def inspect(
    cell: Annotated[
        str,
        typer.Argument(metavar="CELL", help="Name of a cell, as --dry-run and reports show it."),
    ],
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Show where a cell's arrays lie: the mesh, every parameter, and bytes on each device."""
    from rich.console import Console  # noqa: PLC0415 (other commands need not wait for these)

    from bench.commands import inspect  # noqa: PLC0415

    try:
        found = inspect.inspect(cell, implementation_path or (), workload_path or ())
    except BadInput as error:
        refuse(str(error))
    except (CatalogueError, inspect.InspectionError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
    inspect.show(Console(highlight=False), found)


@app.command(epilog=exit_codes())
def explain(
    a: Annotated[str, typer.Argument(metavar="CELL_A", help="Name of a cell, as in reports.")],
    b: Annotated[str, typer.Argument(metavar="CELL_B", help="Cell that it is compared with.")],
    run: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Name or folder of a stored run (default: the newest with traces of both).",
        ),
    ] = None,
) -> None:
    """Say why a step of CELL_A takes longer or shorter than one of CELL_B, from their traces."""
    from rich.console import Console  # noqa: PLC0415 (other commands need not wait for these)

    from bench.commands import explain  # noqa: PLC0415

    try:
        stored = store.load(find_run(run)) if run else explain.newest(a, b)
        found, path = explain.explain(a, b, warned(stored))
    except (BadInput, store.StoreError, OSError) as error:
        refuse(str(error))
    explain.show(Console(highlight=False), found)
    typer.echo(f"causes: {path.as_posix()}")


@app.command(epilog=exit_codes({0: "TensorBoard was ended", 1: "it failed"}))
def tensorboard(
    port: Annotated[int, typer.Option(help="Port of the page.")] = 6006,
    keep: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="First delete the traces of all but N newest runs."),
    ] = None,
) -> None:
    """Show the recorded traces in TensorBoard, on this machine only."""
    if keep is not None:
        for folder in prune(PROFILES, keep):
            typer.echo(f"deleted {folder.as_posix()}/")
    if not traced_runs(PROFILES):
        refuse(f"there are no traces in {PROFILES}/; record some: python -m bench run --profile")
    beside = Path(sysconfig.get_path("scripts")) / "tensorboard"
    program = str(beside) if beside.exists() else shutil.which("tensorboard")
    if program is None:
        refuse("tensorboard is not installed; it is part of the extra `profile`")
    command = [program, "--logdir", str(PROFILES), "--host", "127.0.0.1", "--port", str(port)]
    try:
        code = subprocess.run(command, check=False).returncode  # noqa: S603
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)


app.command(epilog=exit_codes())(maxbatch)
app.command(epilog=exit_codes())(gallery)
app.command(epilog=exit_codes())(publish)
app.command(epilog=exit_codes())(project)
app.command(epilog=exit_codes())(plan)
app.command(epilog=exit_codes({0: "done, whatever was found"}))(selftest)
app.command(epilog=exit_codes({0: "all ended as they must", 1: "something was lost"}))(faults)


def main() -> None:
    """Run the command that was typed; its exit code never looks like another outcome's."""
    try:
        app()
    except Exception:  # noqa: BLE001 - Python's own code for it is 1, which has a meaning here
        traceback.print_exc()
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
