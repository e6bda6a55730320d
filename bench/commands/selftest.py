"""`python -m bench selftest`: how reliably does Lockstep tell differences from noise?"""

from pathlib import Path
from typing import Annotated

import typer

from bench.commands.exits import FAILED, exit_codes, refuse
from bench.commands.shared_options import new_folder, plain_console
from bench.measure.processes.guarded import ChildError
from bench.plan.option_values import BadInput, choice, collected
from bench.records.paths import REPORTS
from bench.records.trial_results import SELFTEST_MANIFEST
from bench.trials.selftest.background_load import PATTERNS
from bench.trials.selftest.peer_tools import PEERS
from bench.trials.selftest.selftest_settings import Settings

DEFAULTS = Settings()

SETTINGS = {"epilog": exit_codes({0: "done, whatever the result"})}


def selftest(
    context: typer.Context,
    processes: Annotated[int, typer.Option(min=1)] = DEFAULTS.processes,
    peer_trials: Annotated[int, typer.Option(min=0)] = DEFAULTS.peer_trials,
    seconds: Annotated[float, typer.Option(min=0.05, max=3600)] = DEFAULTS.seconds,
    report_cells: Annotated[int, typer.Option(min=0)] = DEFAULTS.report_cells,
    load: Annotated[
        list[str] | None, typer.Option(help=f"Background load: {', '.join(PATTERNS)}; repeatable.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Peer: {', '.join(PEERS)}; repeatable.")
    ] = None,
    run: str = "",
    again: str = "",
    samples: str = "",
) -> None:
    """Measure the false alarms, detection and coverage of Lockstep and of other tools.

    This takes about 30 minutes with all tools. Nothing else should run on the machine.

    Args:
      processes: Worker processes under each load.
      peer_trials: Trials of each peer under each load, of equal steps and of a slower one; 0 leaves
        peers out.
      seconds: Seconds per pair of steps in each process.
      report_cells: Cells of the run whose report is timed; 0 times no report.
      run: Name of the folder in reports/.
      again (RUN): Only build the pages of this self-test again.
      samples (FILE|RUN): Only judge stored samples of equal arms: a Parquet or CSV file, all arms
        of which are equal, or a run's twin and copies of its baseline.
    """
    from bench.present import terminal
    from bench.trials.selftest.selftest_session import Session

    given = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]
    if (samples or again) and len(given) > 1:
        refuse(f"{', '.join(given)}: --again and --samples take no other option")
    if samples:
        _judge(samples)
        return
    if again:
        folder = REPORTS / again if (REPORTS / again).exists() else Path(again)
        if not (folder / SELFTEST_MANIFEST).is_file():
            refuse(f"{again} is not a self-test in {REPORTS}/, or it was not finished")
        _build(folder)
        return
    patterns, peers = tuple(load or PATTERNS), tuple(peer or PEERS) if peer_trials else ()
    faults: list[str] = []
    folder = new_folder(faults, run, "selftest")
    for option, words, known in (("--load", patterns, PATTERNS), ("--peer", peers, PEERS)):
        for word in words:
            collected(faults, choice(known), word, option)
    if faults:
        raise BadInput(faults)
    settings = Settings(processes, peer_trials, seconds, report_cells, patterns, peers)
    session, console = Session(settings, folder), plain_console()
    for tool, reason in session.unavailable.items():
        console.print(f"{tool} is skipped: {reason}", soft_wrap=True)
    try:
        with terminal.counter(console, "trials", "finished {} of {} trials") as progress:
            session.run(progress)
    except ChildError as error:
        refuse(f"the self-test ended early: {error}", FAILED)
    _build(folder)


def _judge(name: str) -> None:
    """Run trials on stored samples of equal arms, and print how often the verdicts are right."""
    from bench.present import terminal
    from bench.trials.selftest import equal_arms, shares

    found = shares.shares(equal_arms.trials(equal_arms.read(name)), ["arms", "size"])
    keys = {"size": "Measured", "arms": "Arms"}
    console = plain_console()
    terminal.show(console, shares.verdicts("Verdicts", found, keys))
    terminal.show(console, shares.intervals("95 % intervals", found, keys))


def _build(folder: Path) -> None:
    # Drawing libraries take seconds to load: import them only now, when nobody is waiting.
    from bench.trials.selftest.selftest_results import build

    typer.echo("judging parts of the samples, which takes some minutes")
    page, figures = build(folder)
    for target in figures.targets:
        typer.echo(f"{'met   ' if target.met else 'MISSED'}  {target.promise}: {target.measured}")
    typer.echo(f"self-test: {page.as_posix()}")
