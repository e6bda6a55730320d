"""`python -m bench faults`: is anything lost when something goes wrong? Imports no jax."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bench.commands.exits import refuse
from bench.records.host import usable_cores
from bench.records.paths import REPORTS
from bench.records.spelling import closest
from bench.records.trial_results import as_expected, summarize_faults

if TYPE_CHECKING:
    from bench.trials.faults.fault_outcome import Outcome
    from bench.trials.faults.fault_table import Fault

JOBS = min(usable_cores() + 1, 8)
"""One more than there are cores: many wait for a deadline."""

DEVIATED = 1
"""Exit code where something was lost."""


def faults(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[FAULT]...", help="Which (default: all).")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only list the faults.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Faults that are injected at once.")] = JOBS,
    run: Annotated[str, typer.Option(help="Name of the folder in reports/.")] = "",
) -> None:
    """Inject faults into real runs, and check that nothing is lost: a table of what each left.

    What cannot be injected here is skipped, and said to be.
    """
    # Other commands need not wait for these.
    from bench.trials.faults import fault_page, fault_session  # noqa: PLC0415
    from bench.trials.faults.fault_table import FAULTS  # noqa: PLC0415

    console = Console(highlight=False)
    if list_:
        for fault in FAULTS:
            console.print(f"{fault.name}  ({fault.kind}) {fault.how}", soft_wrap=True)
        return
    known = {fault.name: fault for fault in FAULTS}
    unknown = [f"unknown {one!r}; {closest(one, known)}" for one in names or () if one not in known]
    name = run or f"faults_{datetime.now(UTC):%Y-%m-%d_%H%M}"
    if Path(name).name != name:
        unknown.append(f"--run: {name!r} is not a plain name of a folder")
    elif (REPORTS / name).exists():
        unknown.append(f"--run: {name} exists in {REPORTS}/; choose another name")
    if unknown:
        refuse("\n".join(unknown))

    def done(fault: Fault, outcome: Outcome) -> None:
        word = f"{fault_page.verdict(outcome):7}"
        console.print(f"{word}  {fault.name}  {outcome.seconds:.0f} s", soft_wrap=True)
        for deviation in outcome.deviations:
            console.print(f"  {deviation}", soft_wrap=True, markup=False)

    results = fault_session.run([known[one] for one in names or known], jobs, done)
    fault_session.write(REPORTS / name, results)
    path = fault_page.build(REPORTS / name, results)
    console.print(fault_page.table(results))
    console.print(summarize_faults(results))
    typer.echo(f"faults: {path.as_posix()}")
    raise typer.Exit(0 if all(as_expected(row) for row in results["rows"]) else DEVIATED)
