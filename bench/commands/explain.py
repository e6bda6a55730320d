"""`python -m bench explain CELL_A CELL_B`: why their steps take different times."""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, Annotated

import typer

from bench.commands.shared_options import plain_console, warn_of_damage
from bench.measure.run_folder import find_run, refuse_race
from bench.plan.option_values import BadInput
from bench.records import store
from bench.records.git_files import tracked_folders
from bench.records.paths import REPORTS, as_typed

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from bench.analyse.causes import Attribution
    from bench.analyse.cell_table import Tables


def explain(
    a: str, b: str, run: str | None = None, every: Annotated[bool, typer.Option("--all")] = False
) -> None:
    """Explain why a step of CELL_A takes longer or shorter than one of CELL_B.

    Compares their compiled programs by source line, and their traces if both cells have one.

    Args:
      a (CELL_A): Name of a cell, or its end where no other has that.
      b (CELL_B): Cell to compare it with.
      run (RUN): Stored run (default: the newest unpublished one with traces of both cells, or
        else with their programs).
      every: Show every cause instead of one screenful.
    """
    from bench.analyse import cell_table
    from bench.present import explanation

    console = plain_console()
    stored = store.load(find_run(run)) if run else newest_run(a, b)
    warn_of_damage(stored)
    refuse_race(stored.manifest, "explained")
    programs, tables = stored.programs, cell_table.build(stored)
    cells = {row["cell"]: row for row in tables.rows}
    a, b = whole_name(a, cells), whole_name(b, cells)
    if a == b:
        raise BadInput(["name two different cells"])
    compiled = {a, b} <= programs.keys()
    separate = {a, b} <= cells.keys() and any(cells[name]["foreign"] for name in (a, b))
    traced = not separate and {a, b} <= tables.traces.keys()
    if compiled or separate:
        explanation.show_times(console, (a, b), tables)
    if compiled and (every or not traced):
        explanation.show_programs(console, (a, b), (programs[a], programs[b]))
    if separate:
        explanation.show_parts(console, (a, b), tables)
        return
    if compiled and not traced:
        typer.echo("Traces would show how long each operation takes; --profile records them.")
        return
    found = attributed(a, b, stored.directory, tables)
    explanation.show(console, found, stored.directory.name, every=every)


def attributed(a: str, b: str, run: Path, tables: Tables) -> Attribution:
    """Compare the traces of two cells of a run; BadInput without a trace or a time of both."""
    from bench.analyse.causes import attribute

    cells, traces = {row["cell"]: row for row in tables.rows}, tables.traces
    said = f"{run} has no cell"
    if faults := [_unknown(name, cells, said) for name in (a, b) if name not in cells]:
        raise BadInput(faults)
    for name in (a, b):
        status = cells[name]["status"]
        if name not in traces:
            why = "record it with --profile" if status == "ok" else f"it is {status}"
            faults.append(f"{name} has no trace in {run}; {why}")
        elif math.isnan(cells[name]["latency_s"]):
            faults.append(f"{name} has no time in {run}; it is {status}")
    if faults:
        raise BadInput(faults)
    return attribute(traces[a], traces[b], cells[a]["latency_s"] / cells[b]["latency_s"])


def whole_name(end: str, cells: Collection[str]) -> str:
    """Return the only cell whose name ends with these parts; otherwise return the argument."""
    found = [cell for cell in cells if cell.endswith(f"/{end}")]
    return found[0] if len(found) == 1 and end not in cells else end


def newest_run(a: str, b: str) -> store.Run:
    """Load the newest stored run with traces of both cells, or else with their programs.

    Published runs may come from other machines, so they are used only if `--run` names them.
    BadInput if there is no such run.
    """
    published = (REPORTS.is_dir() and tracked_folders(REPORTS)) or set()
    known = set[str]()
    compiled = None
    for run in store.newest(REPORTS, most=None, without=published):
        cells = {row["cell"] for row in run.cell_rows}
        traced = {row["cell"] for row in run.traces}
        both = {whole_name(a, cells), whole_name(b, cells)}
        if both <= traced:
            return run
        apart = {row["cell"] for row in run.cell_rows if "foreign" in row}
        comparable = {*run.programs, *apart, *traced}
        known |= comparable
        if compiled is None and both <= comparable:
            compiled = run
    if compiled is not None:
        return compiled
    if not known:
        hint = " (--run NAME explains a published run)" if published else ""
        record = f"record some: {as_typed('run')} --profile"
        raise BadInput([f"no run in {REPORTS}/ has traces; {record}{hint}"])
    missing = [name for name in (a, b) if whole_name(name, known) not in known]
    said = f"no run in {REPORTS}/ has a program or trace of"
    raise BadInput(
        [_unknown(name, known, said) for name in missing]
        or [f"no run in {REPORTS}/ has programs or traces of both; only cells of one run compare"]
    )


def _unknown(name: str, known: Collection[str], said: str) -> str:
    """Return the fault that no single cell has this name, with the most similar names."""
    several = sorted(cell for cell in known if cell.endswith(f"/{name}"))
    names = several or sorted(known)
    near = difflib.get_close_matches(name, names, cutoff=0)  # at most three
    others = f", and {len(names) - len(near)} more" if len(names) > len(near) else ""
    fault = f"several cells end in {name}:" if several else f"{said} {name}; there are"
    return f"{fault} {', '.join(near) or 'none'}{others}"
