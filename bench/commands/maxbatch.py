"""`python -m bench maxbatch RUN`: the largest batch that fits, for each cell of a run."""

import re
from pathlib import Path

import typer

from bench.commands.shared_options import Files, Keyword, files_of, load_run, plain_console
from bench.measure.catalogue import file_faults, read_catalogue
from bench.measure.run_folder import find_run, refuse_race
from bench.plan.content_keys import Contents
from bench.plan.option_values import BadInput, collected
from bench.plan.selection import selector
from bench.records import largest_batches, numbers
from bench.records.paths import as_typed


def maxbatch(
    run: str,
    expression: Keyword = "",
    memory: str | None = None,
    again: bool = False,
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Find the largest batch that fits, for each implementation that a run has proved.

    Compiling the step predicts the memory that a device would need; the largest batch within the
    limit then runs for a few steps. Every result is stored at once, a later call continues with the
    remaining cells, and `report` shows the results.

    Args:
      memory (BYTES): Memory limit of one device, such as 16GiB (default: what the device offers to
        a program; required on CPU).
      again: Repeat searches whose results are stored for this limit.
    """
    from bench.present import run_tables
    from bench.project import largest_fit

    faults = file_faults(implementation_path or (), workload_path or ())
    folder = collected(faults, find_run, run) or Path()
    selected = collected(faults, selector, expression) or selector("")
    limit_bytes = None if memory is None else collected(faults, bytes_of, memory)
    if faults:
        raise BadInput(faults)
    refuse_race((stored_run := load_run(run)).manifest, "searched")
    proved = (row for row in stored_run.decisive() if row["status"] == "ok")
    cells = [row for row in proved if selected(row["cell"])]
    catalogue = read_catalogue(*files_of(folder, implementation_path, workload_path))
    limit = largest_fit.limit_of(catalogue, limit_bytes)
    searches = largest_fit.searches_of_run(cells, Contents(catalogue), limit)
    if not searches:
        lost = "; damaged launches are set aside, see the warnings" if stored_run.damaged else ""
        fault = f"{folder.name}: no selected cell is ok and runs in a single process"
        raise BadInput([f"{fault}{lost}"])
    stored = [] if again else largest_batches.read(folder)
    known = [(one, largest_fit.valid(one, stored)) for one in searches]
    rows = [row for _, row in known if row]
    left = [one for one, row in known if not row]
    total = numbers.count(len(searches), "cell")
    if rows:
        typer.echo(f"{len(rows)} of {total} kept from before; --again searches them again")
    try:
        console = plain_console(stderr=True)
        for row in largest_fit.search_here(left, catalogue, console):
            largest_batches.write(folder, [row])
            typer.echo(run_tables.largest_line(row))
            rows.append(row)
    except KeyboardInterrupt:
        kept = f"{len(rows)} of {total} stored"
        typer.echo(f"interrupted: {kept}; the same command without --again continues", err=True)
        raise
    run_tables.show_largest(plain_console(), sorted(rows, key=largest_batches.key))
    path = (folder / largest_batches.FILE).as_posix()
    typer.echo(f"stored: {path} (`{as_typed('report')} {run}` shows it)")


def bytes_of(text: str) -> float:
    """Parse a size such as `16GiB` or `80G`; BadInput if it is 0 or has no unit."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)\s*(k|M|G|T|Ki|Mi|Gi|Ti)B?", text)
    if match is None or not float(match[1]):
        form = "is not a number above 0, of up to 15 digits, and a unit, as in 16GiB or 80G"
        raise BadInput([f"--memory: {text!r} {form}"])
    number, unit = match.groups()
    return float(number) * (1024.0 if "i" in unit else 1e3) ** ("KMGT".index(unit[0].upper()) + 1)
