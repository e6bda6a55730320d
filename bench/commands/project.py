"""`python -m bench project` and `plan`: steps on hardware that is not here. Imports no jax."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bench.commands.exits import FAILED, refuse, warned
from bench.commands.shared_options import Files
from bench.measure.catalogue import CatalogueError, faults_of_files, read_catalogue
from bench.measure.run_folder import find_run
from bench.plan.matrix import BadInput, collected
from bench.plan.presets import DEFAULT_BATCHES, FALLBACK_BATCH
from bench.records import files, store
from bench.records.cells import PRECISIONS, StepOptions
from bench.records.messages import Catalogue
from bench.records.paths import REPORTS
from bench.records.spelling import closest

_COMPILING = "compiling steps", "compiled {} of {} steps"
_INTERRUPTED = "interrupted: what was compiled is kept, and the same command goes on from there"
_HARDWARE = "Chips, by their sheets in bench/project/hardware/: h100-sxm,tpu-v5p."


def project(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name or folder of a stored run.")
    ] = None,
    hardware: Annotated[str, typer.Option(metavar="NAMES", help=_HARDWARE)] = "h100-sxm,h200",
    chips: Annotated[
        str, typer.Option(metavar="COUNTS", help="8,16,24 or 8..65536, which doubles.")
    ] = "8..1024",
    scaling: Annotated[
        str, typer.Option(help="weak: a shard of the batch keeps its size; strong: the batch does.")
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
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Predict a run's steps on other hardware and more chips, beside what was measured here."""
    from rich.console import Console  # noqa: PLC0415 (other commands need not wait for these)

    from bench.plan.selection import everything, selector  # noqa: PLC0415
    from bench.present import predicted_curves  # noqa: PLC0415
    from bench.present.terminal import counter, show  # noqa: PLC0415
    from bench.project import curve_charts, prediction_tables, projection_page  # noqa: PLC0415
    from bench.project.compiled_programs import programs  # noqa: PLC0415
    from bench.project.projection import project  # noqa: PLC0415
    from bench.project.projection_request import (  # noqa: PLC0415
        Request,
        chip_counts,
        sheets,
        unavailable,
    )

    console = Console(highlight=False)
    if check_published:
        if run is not None:
            refuse("--check-published shows public results, and takes no run")
        show(console, prediction_tables.published())
        show(console, prediction_tables.answers())
        return
    if run is None:
        refuse("name a stored run, or --check-published")
    paths = (tuple(implementation_path or ()), tuple(workload_path or ()))
    try:
        faults = [*faults_of_files(*paths), *_precision_faults(precision)]
        wanted = collected(faults, sheets, hardware) or []
        counts = collected(faults, chip_counts, chips) or []
        faults += unavailable(wanted, counts)
        selected = collected(faults, selector, keyword) or everything
        folder = collected(faults, find_run, run) or Path()
        if scaling not in ("weak", "strong"):
            faults.append(f"--scaling: {scaling!r} is neither weak nor strong")
        if faults:
            raise BadInput(faults)  # noqa: TRY301 - with the faults of all others
        request = Request(
            tuple(wanted),
            tuple(counts),
            "strong" if scaling == "strong" else "weak",
            precision,
            selected,
        )
        stored = warned(store.load(folder))
        catalogue = read_catalogue(*paths)
        with counter(Console(stderr=True, highlight=False), *_COMPILING) as progress:
            found = project(
                stored, request, lambda cells: programs(cells, catalogue, progress=progress)
            )
        drawn = curve_charts.draw(found)
        written = projection_page.build(
            found, drawn, wanted, folder / predicted_curves.PAGE.parent, sys.argv[2:]
        )
    except (BadInput, store.StoreError, OSError) as error:
        refuse(str(error))
    except CatalogueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        typer.echo(_INTERRUPTED, err=True)
        raise
    projection_page.show(console, found, drawn)
    typer.echo(f"projection: {written.as_posix()} (`bench report {run}` shows its curves)")


def plan(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD-SIZE", help="As of `run`: gpt2-124m.")
    ],
    hardware: Annotated[
        str, typer.Option(metavar="NAME", help="A chip, by its sheet in bench/project/hardware/.")
    ] = "h100-sxm",
    chips: Annotated[int, typer.Option(help="How many.")] = 8,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Of all chips (default: the workload's default, on each chip)."),
    ] = None,
    precision: Annotated[str, typer.Option(help="Of the step.")] = "bf16",
    microbatches: Annotated[int, typer.Option(min=1, help="Parts of the batch.")] = 1,
    remat: Annotated[bool, typer.Option("--remat", help="Compute activations again.")] = False,
    keyword: Annotated[
        str, typer.Option("-k", metavar="EXPRESSION", help="Which implementations.")
    ] = "",
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Rank mesh shapes and implementations of a workload by predicted step time."""
    from rich.console import Console  # noqa: PLC0415 (other commands need not wait for these)

    from bench.plan.selection import everything, selector  # noqa: PLC0415
    from bench.present.terminal import counter  # noqa: PLC0415
    from bench.project import plan_page  # noqa: PLC0415
    from bench.project.compiled_programs import MOST_DEVICES, programs  # noqa: PLC0415
    from bench.project.mesh_ranking import rank  # noqa: PLC0415
    from bench.project.projection_request import (  # noqa: PLC0415
        chip_counts,
        sheets,
        unavailable,
        without_peak,
    )

    paths = (tuple(implementation_path or ()), tuple(workload_path or ()))
    try:
        faults = [*faults_of_files(*paths), *_precision_faults(precision)]
        wanted = collected(faults, sheets, hardware) or []
        # Every mesh is compiled.
        counts = collected(faults, partial(chip_counts, most=MOST_DEVICES), str(chips)) or []
        faults += unavailable(wanted, counts)
        if len(wanted) > 1:
            faults.append("--hardware: a plan is of one chip")
        selected = collected(faults, selector, keyword) or everything
        faults = faults or [*without_peak(wanted, [precision])]
        if faults:
            raise BadInput(faults)  # noqa: TRY301 - with the faults of all others
        (sheet,) = wanted
        catalogue = read_catalogue(*paths)
        name = _workload(workload, catalogue)
        each = DEFAULT_BATCHES.get("-".join(name), FALLBACK_BATCH)
        usable = [one["name"] for one in catalogue["implementations"] if not one["error"]]
        chosen = [one for one in usable if selected(one)]
        if not chosen:
            raise BadInput([f"-k: {keyword!r} selects none of {', '.join(usable)}"])  # noqa: TRY301
        with counter(Console(stderr=True, highlight=False), *_COMPILING) as progress:
            found = rank(
                name,
                batch or each * chips,
                StepOptions(precision, microbatches=microbatches, remat=remat),
                sheet,
                chips,
                chosen,
                lambda cells: programs(cells, catalogue, progress=progress),
            )
        if not found.ranked:
            reasons = (*found.refused, *found.unsupported)
            raise BadInput([f"{workload}: no mesh can be predicted", *reasons])  # noqa: TRY301
        written = plan_page.build(found, REPORTS / f"plan_{files.slug(found.title)}")
    except (BadInput, OSError) as error:
        refuse(str(error))
    except CatalogueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(FAILED) from error
    except KeyboardInterrupt:
        typer.echo(_INTERRUPTED, err=True)
        raise
    plan_page.show(Console(highlight=False), found)
    typer.echo(f"plan: {written.as_posix()}")


def _workload(text: str, catalogue: Catalogue) -> tuple[str, str]:
    """A workload and its size.

    Raises:
      BadInput: there is none of that name.
    """
    known = {
        f"{entry['name']}-{size}": (entry["name"], size)
        for entry in catalogue["workloads"]
        if not entry["error"]
        for size in entry["sizes"]
    }
    if text not in known:
        raise BadInput([f"unknown workload {text!r}; {closest(text, known)}"])
    return known[text]


def _precision_faults(precision: str | None) -> list[str]:
    if precision is None or precision in PRECISIONS:
        return []
    return [f"--precision: unknown {precision!r}; {closest(precision, PRECISIONS)}"]
