"""`python -m bench selftest`: how good is the detector? Imports no jax."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.commands.exits import FAILED, refuse
from bench.records.paths import REPORTS
from bench.records.spelling import closest
from bench.records.trial_results import SELFTEST_MANIFEST
from bench.trials.selftest.background_load import PATTERNS, LoadError
from bench.trials.selftest.peer_tools import peer_names
from bench.trials.selftest.planted_kernel import KernelError
from bench.trials.selftest.selftest_settings import LAUNCHES, Settings

DEFAULTS = Settings()


def selftest(
    processes: Annotated[
        int, typer.Option(min=1, help="Worker processes of Lockstep under each load.")
    ] = DEFAULTS.processes,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each.")] = DEFAULTS.trials,
    peer_trials: Annotated[
        int, typer.Option(min=0, help="Trials of each peer, slowdown and load; 0: ask no peers.")
    ] = DEFAULTS.peer_trials,
    seconds: Annotated[
        float, typer.Option(min=0.05, help="Measuring time of a pair of programs.")
    ] = DEFAULTS.seconds,
    report_cells: Annotated[
        int, typer.Option(min=0, help="Cells of a run whose report is timed; 0: none is.")
    ] = DEFAULTS.report_cells,
    load: Annotated[
        list[str] | None, typer.Option(help=f"Background load: {', '.join(PATTERNS)}; repeatable.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help=f"Peer: {', '.join(peer_names())}; repeatable.")
    ] = None,
    run: Annotated[str, typer.Option(help="Name of the folder in reports/.")] = "",
    again: Annotated[
        str, typer.Option(metavar="RUN", help="Only build this self-test's pages again.")
    ] = "",
) -> None:
    """Measure Lockstep's own false alarms, detection and coverage, beside its peers'.

    Takes about half an hour with all peers. Nothing else should run on the machine.
    """
    # Other commands need not wait for it.
    from bench.trials.selftest.selftest_session import Session  # noqa: PLC0415
    from bench.trials.selftest.trial_rows import DamagedError  # noqa: PLC0415

    if again:
        folder = REPORTS / again if (REPORTS / again).exists() else Path(again)
        if not (folder / SELFTEST_MANIFEST).is_file():
            refuse(f"{again} is not a self-test in {REPORTS}/, or did not end")
        try:
            _build(folder)
        except DamagedError as error:
            refuse(str(error))
        return
    peers = tuple(peer or peer_names()) if peer_trials else ()
    name = run or f"selftest_{datetime.now(UTC):%Y-%m-%d_%H%M}"
    folder = REPORTS / name
    faults = _faults(processes, load or (), peers, folder, name)
    if faults:
        refuse("\n".join(faults))
    settings = Settings(
        processes, trials, peer_trials, seconds, report_cells, tuple(load or PATTERNS), peers
    )
    console = Console(highlight=False)
    session = Session(settings, folder)
    for tool, reason in session.unavailable.items():
        console.print(f"{tool} is not asked: {reason}", soft_wrap=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    try:
        with bar:
            total = session.tasks_of_a_pattern * len(settings.patterns)
            task = bar.add_task("starting", total=total)

            def progress(pattern: str) -> None:
                bar.update(task, description=f"load: {pattern}")
                bar.advance(task)

            session.run(progress)
    except KernelError as error:
        refuse(str(error))
    except (LoadError, subprocess.SubprocessError) as error:
        typer.echo(f"error: the self-test ended early: {error}", err=True)
        raise typer.Exit(FAILED) from error
    _build(folder)


def _faults(
    processes: int, loads: Sequence[str], peers: Sequence[str], folder: Path, name: str
) -> list[str]:
    known = (("--load", loads, PATTERNS), ("--peer", peers, peer_names()))
    faults = [
        f"{option}: unknown {word!r}; {closest(word, words)}"
        for option, asked, words in known
        for word in asked
        if word not in words
    ]
    if processes > LAUNCHES and processes % LAUNCHES:
        faults.append(f"--processes: {processes} is not a multiple of {LAUNCHES}, a run's launches")
    if Path(name).name != name:
        faults.append(f"--run: {name!r} is not a plain name of a folder")
    elif folder.exists():
        faults.append(f"--run: {name} exists in {REPORTS}/; choose another name")
    return faults


def _build(folder: Path) -> None:
    # Drawing libraries take seconds to load: only now, when nobody waits for an answer.
    from bench.trials.selftest.selftest_page import build  # noqa: PLC0415

    page, figures = build(folder)
    for target in figures.targets:
        word = "met   " if target.met else "MISSED"
        typer.echo(f"{word}  {target.promise}: {target.measured}")
    typer.echo(f"self-test: {page.as_posix()}")
