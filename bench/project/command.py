"""`python -m bench project` and `plan`: steps on hardware that is not here. Imports no jax."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bench import store
from bench.catalogue import CatalogueError
from bench.cells import PRECISIONS
from bench.engine import find_run
from bench.exits import FAILED, refuse
from bench.matrix import BadInput
from bench.spelling import closest

_HARDWARE = "Chips, by their sheets in bench/project/hardware/: h100-sxm,tpu-v5p."


def project(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name or folder of a stored run.")
    ] = None,
    hardware: Annotated[str, typer.Option(metavar="NAMES", help=_HARDWARE)] = "h100-sxm,tpu-v5p",
    chips: Annotated[
        str, typer.Option(metavar="COUNTS", help="8,16,24 or 8..65536, which doubles.")
    ] = "8..1024",
    scaling: Annotated[
        str, typer.Option(help="weak: a device's batch stays; strong: the global batch does.")
    ] = "weak",
    precision: Annotated[
        str | None, typer.Option(help="Of the steps (default: the run's own).")
    ] = None,
    keyword: Annotated[
        str, typer.Option("-k", metavar="EXPRESSION", help="Which cells of the run, as of `run`.")
    ] = "",
    check_published: Annotated[
        bool,
        typer.Option("--check-published", help="Only show predictions beside public results."),
    ] = False,
) -> None:
    """Predict a run's steps on other hardware and more chips, beside what was measured here."""
    from rich.console import Console  # noqa: PLC0415 (other commands need not wait for these)

    from bench.project import charts, page, terminal, words  # noqa: PLC0415
    from bench.project.asked import chip_counts, sheets, unavailable  # noqa: PLC0415
    from bench.project.programs import programs  # noqa: PLC0415
    from bench.project.projection import Asked, project  # noqa: PLC0415
    from bench.selection import selector  # noqa: PLC0415

    console = Console(highlight=False)
    if check_published:
        terminal.show_table(console, words.published())
        terminal.show_table(console, words.answers())
        return
    if run is None:
        refuse("name a stored run, or --check-published")
    try:
        wanted, counts = sheets(hardware), chip_counts(chips)
        faults = [*unavailable(wanted, counts), *_precision_faults(precision)]
        if scaling not in ("weak", "strong"):
            faults.append(f"--scaling: {scaling!r} is neither weak nor strong")
        if faults:
            raise BadInput(faults)  # noqa: TRY301 - with the faults of all others
        asked = Asked(
            tuple(wanted),
            tuple(counts),
            "strong" if scaling == "strong" else "weak",
            precision,
            selector(keyword),
        )
        folder = find_run(run)
        stored = store.load(folder)
        for damage in stored.damaged:
            typer.echo(f"warning: {folder.as_posix()}: set aside: {damage}", err=True)
        found = project(stored, asked, programs)
        written = page.build(found, wanted, folder / page.FOLDER, sys.argv[2:])
    except (BadInput, store.StoreError, ValueError, OSError) as error:
        refuse(str(error))
    except CatalogueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
    terminal.show(console, found, charts.draw(found))
    typer.echo(f"projection: {written.as_posix()}")


def _precision_faults(precision: str | None) -> list[str]:
    if precision is None or precision in PRECISIONS:
        return []
    return [f"--precision: unknown {precision!r}; {closest(precision, PRECISIONS)}"]
