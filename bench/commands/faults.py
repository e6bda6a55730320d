"""`python -m bench faults`: is any result lost when something goes wrong?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from bench.commands.exits import FAILED, exit_codes, refuse
from bench.commands.shared_options import new_folder, plain_console
from bench.plan.option_values import BadInput, choice, collected
from bench.records.host import usable_cores
from bench.records.store import StoreError
from bench.records.trial_results import summarize_faults

if TYPE_CHECKING:
    from pathlib import Path

    from bench.trials.faults.fault_table import Fault
    from bench.trials.faults.observed_run import Outcome

JOBS = min(usable_cores() + 1, 8)
"""One more than the number of cores, because many faults wait for a deadline."""

DEVIATED = 1
"""Exit code if any fault had another outcome than expected."""

_LOST = "a result was lost, or a right step convicted"
SETTINGS = {"epilog": exit_codes({0: "all ended as expected", DEVIATED: _LOST})}


def faults(
    names: Annotated[list[str] | None, typer.Argument()] = None,
    list_: Annotated[bool, typer.Option("--list")] = False,
    jobs: Annotated[int, typer.Option(min=1)] = JOBS,
    run: str = "",
    right: Annotated[int, typer.Option(min=0)] = 0,
    limit: Annotated[float | None, typer.Option(min=0)] = None,
) -> None:
    """Inject faults into real runs, and check that no result is lost.

    The resulting page shows the outcome of each fault. Faults that cannot be injected on this
    machine are skipped and reported as such.

    Args:
      names ([FAULT]...): Faults to inject (default: all).
      list_: Only list the faults.
      jobs: Number of faults to inject at the same time.
      run: Name of the folder in reports/.
      right (LAUNCHES): Instead of injecting faults, measure the shipped implementations on a
        loaded machine, and count false convictions in at least this many launches.
      limit (SECONDS): With --right: begin no run after this (default: 7200).
    """
    from rich.text import Text

    from bench.trials.faults import fault_session
    from bench.trials.faults.fault_table import FAULTS

    console = plain_console()
    known = {fault.name: fault for fault in FAULTS}
    wrong = ["--limit: it has no effect without --right"] if limit is not None and not right else []
    wrong += ["--right injects no faults, so name none"] if right and names else []
    folder = new_folder(wrong, run, "faults")
    for name in names or ():
        collected(wrong, choice(known), name, "fault")
    if wrong:
        raise BadInput(wrong)
    chosen = [known[name] for name in names or known]
    if list_:
        for fault in chosen:
            console.print(f"{fault.name}  ({fault.kind}) {fault.how}", soft_wrap=True)
        return
    if right:
        _measure_right(right, 7200.0 if limit is None else limit, folder)

    def done(fault: Fault, outcome: Outcome) -> None:
        word = fault_session.verdict(vars(outcome))
        styled = (f"{word:7}", fault_session.STYLES[word])
        line = Text.assemble(styled, f"  {fault.name}  {outcome.seconds:.0f} s")
        console.print(line, soft_wrap=True)  # in one call, because faults end in other threads
        for said in filter(None, (outcome.skipped, *outcome.deviations)):
            console.print(f"  {said}", soft_wrap=True, markup=False)

    results = fault_session.run(chosen, jobs, done)
    path = fault_session.build(folder, results)
    console.print(summarize_faults(results))
    typer.echo(f"faults: {path.as_posix()}")
    deviated = any(row["outcome"]["deviations"] for row in results["rows"])
    raise typer.Exit(DEVIATED if deviated else 0)


def _measure_right(launches: int, limit_s: float, folder: Path) -> NoReturn:
    """Count false convictions among right steps; show every run and the sum."""
    from bench.trials.faults import right_launches

    runs = []
    try:
        for one in right_launches.run(launches, limit_s, folder):
            runs.append(one)
            words = " ".join((one["load"], *one["options"]))
            typer.echo(f"{words}: {one['launches']} launches, {one['arms']} arms")
            for name, status, reason in one["ended"]:
                typer.echo(f"  {name} is {status}: {reason}")
    except StoreError as error:
        typer.echo(right_launches.summarize(runs))
        refuse(str(error), FAILED)
    typer.echo(f"{right_launches.summarize(runs)}\nruns: {folder.as_posix()}")
    if sum(one["launches"] for one in runs) < launches:
        refuse(f"--limit ended it before {launches} launches", FAILED)
    wrong = any(status in right_launches.CONVICTED for one in runs for _, status, _ in one["ended"])
    raise typer.Exit(DEVIATED if wrong else 0)
