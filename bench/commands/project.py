"""`python -m bench project RUN`: predictions for hardware that is not here."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.commands.exits import refuse
from bench.commands.shared_options import Files, Keyword, files_of, load_run, plain_console
from bench.measure.catalogue import file_faults, read_catalogue
from bench.measure.run_folder import find_run, refuse_race
from bench.plan.option_values import BadInput, choice, collected
from bench.plan.selection import selector
from bench.records import derived_files
from bench.records.cells import PRECISIONS
from bench.records.paths import as_typed


def project(
    run: Annotated[str | None, typer.Argument()] = None,
    hardware: str = "h100-sxm,h200",
    chips: str = "8..1024",
    scaling: str = "weak",
    precision: str | None = None,
    keyword: Keyword = "",
    check_published: bool = False,
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Predict a run's steps on other hardware and more chips, based on its measurements here.

    Args:
      run (RUN): Name or folder of a stored run; `last` is the newest.
      hardware (NAMES): Chips, named by their files in bench/project/hardware/.
      chips (COUNTS): Numbers of chips: 8,16,24, or 8..65536 (doubling).
      scaling: weak: the batch per shard stays constant; strong: the global batch.
      precision: Precision of the steps (default: that of the run).
      check_published: Only compare predictions with published results.
    """
    if (run is None) != check_published:
        refuse("name either a stored run or --check-published")
    from bench.present.terminal import show
    from bench.project import prediction_tables, projection, projection_page
    from bench.project.compiled_programs import compiling
    from bench.project.program_formulae import Scaling
    from bench.project.projection import targets

    console = plain_console()
    if run is None:
        show(console, prediction_tables.published())
        return
    faults = file_faults(implementation_path or (), workload_path or ())
    if precision is not None:
        collected(faults, choice(PRECISIONS), precision, "--precision")
    wanted, counts = targets(faults, hardware, chips)
    selected = collected(faults, selector, keyword) or selector("")
    folder = collected(faults, find_run, run) or Path()
    collected(faults, choice(("weak", "strong")), scaling, "--scaling")
    if faults:
        raise BadInput(faults)
    kind: Scaling = "strong" if scaling == "strong" else "weak"
    refuse_race((stored := load_run(run)).manifest, "projected")
    catalogue = read_catalogue(*files_of(folder, implementation_path, workload_path))
    with compiling(catalogue, plain_console(stderr=True)) as read:
        found = projection.project(stored, wanted, counts, read, kind, precision, selected)
    drawn = projection_page.draw(found)
    written = projection_page.build(
        found, drawn, wanted, folder / derived_files.PROJECTION, sys.argv[2:]
    )
    projection_page.show(console, found, drawn)
    typer.echo(f"projection: {written.as_posix()} (`{as_typed('report')} {run}` leads to it)")
