"""`python -m bench referee INCUMBENT.py CHALLENGER.py ...`: are changed steps faster?"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from bench.commands import run
from bench.commands.exits import OptionParser, refuse, termination_as_interrupt
from bench.commands.shared_options import plain_console
from bench.measure.catalogue import path_faults
from bench.plan.content_keys import read_files
from bench.plan.matrix import name_of
from bench.plan.option_values import BadInput
from bench.plan.options import Options, command_parser, read_options
from bench.records import store
from bench.records.attempts import Ledger
from bench.records.files import digest, storing
from bench.records.paths import REPORTS, ROOT

if TYPE_CHECKING:
    from bench.measure.engine import Engine

SETTINGS = run.SETTINGS

IDENTICAL = "identical to the incumbent, so it was not measured"

DISCARD, UNDECIDED = 1, 2
"""Exit codes beside 0, keep."""

BLOCK = ("workloads", "meshes", "batch_sizes", "precision", "microbatches", "remat", "scan_layers",
         "clip_norm", "processes", "devices", "workload_path")  # fmt: skip
"""Options that determine the block; a ledger remembers them."""
EFFORT = ("launches", "rounds", "seconds", "margin", "budget", "cold", "timeout", "silence",
          "isolate")  # fmt: skip
DEFAULTS = {"launches": "3", "rounds": "64", "seconds": "10", "margin": "2", "meshes": ("data=1",)}


def referee(context: typer.Context) -> None:
    """Decide whether changed steps are faster than an incumbent. See `referee --help`."""
    unused = {option.name for option in fields(Options)} - {*BLOCK, *EFFORT}
    given = command_parser("referee", unused, OptionParser).parse_args(context.args)
    path = Path(given.ledger or REPORTS / "referee.jsonl")
    paths = [given.incumbent, *given.challengers]
    if faults := path_faults("implementations", _outside(paths)):
        raise BadInput(faults)
    try:
        with storing(path.parent), termination_as_interrupt():
            code = _judged(Ledger(path), read_options(given), paths, as_json=given.json)
    except KeyboardInterrupt:
        typer.echo("interrupted; attempts that have begun are recorded as inconclusive", err=True)
        raise
    raise typer.Exit(code)


def _judged(ledger: Ledger, options: Options, paths: Sequence[str], *, as_json: bool) -> int:
    """Measure, judge, store and print; return the exit code."""
    from bench.analyse.alpha_spending import level
    from bench.analyse.outcomes import Ruling, judge_attempts, made_findings, record
    from bench.analyse.verdicts import ALPHA
    from bench.commands.pytest_plugin.run_estimates import RunEstimates
    from bench.present import attempt_record

    engine, hashes = _set_up(ledger, options, paths)
    (incumbent, own), *named = zip(map(name_of, paths), hashes, strict=True)
    tested = [name for name, its in named if its != own]
    error = level(made_findings(ledger.attempts), max(len(tested), 1))
    attempts = ledger.begin(own, named, error)
    started, rulings, programs = time.monotonic(), dict[str, Ruling](), {}
    if tested:
        (block,), engine.schedule.sharing = engine.plan.blocks, ALPHA / error
        selected = {block: [incumbent, *tested]}
        with RunEstimates(engine).progress(plain_console(stderr=True), selected) as progress:
            engine.measure(selected, progress)
        stored = store.load(engine.directory or REPORTS)
        rulings = judge_attempts(stored, incumbent, tested, engine.schedule.sharing)
        programs = stored.programs
    seconds = round(time.monotonic() - started, 1)
    run_name = engine.directory.name if engine.directory else ""
    diagnoses = []
    for one in attempts:
        how = rulings.get(one["name"]) or Ruling("discard", IDENTICAL)
        ledger.end(one["number"], {**how.row, "seconds": seconds, "run": run_name})
        diagnoses.append(attempt_record.diagnosis(how, one["name"], incumbent, programs))
    page, curve = attempt_record.build(ledger), record(ledger.question, ledger.attempts)
    if as_json:
        outcomes = [{**one, "diagnosis": why} for one, why in zip(attempts, diagnoses, strict=True)]
        question = {"block": ledger.question["block"], "incumbent": incumbent}
        found_ = {"attempts": outcomes, "record": curve[-1], "curve": curve, "page": str(page)}
        typer.echo(json.dumps({**question, "ledger": str(ledger.path), **found_}))
    else:
        for one, why in zip(attempts, diagnoses, strict=True):
            typer.echo("\n  ".join([attempt_record.sentence(one), *why]))
        typer.echo(attempt_record.summary(ledger))
        typer.echo(f"attempts: {page.as_posix()}")
    if any(incumbent in state.failed for state in engine.schedule.blocks.values()):
        refuse(next(how.reason for how in rulings.values()))
    decisions = {one["decision"] for one in attempts if "decision" in one}
    return 0 if "keep" in decisions else UNDECIDED if "undecided" in decisions else DISCARD


def _set_up(ledger: Ledger, options: Options, paths: Sequence[str]) -> tuple[Engine, list[str]]:
    """Return the engine and the hash of every file; BadInput if anything is wrong.

    A hash covers a file and everything that it imports from the project or from its own folder.
    """
    from bench.analyse.outcomes import relative_times
    from bench.measure.processes.group import Hosts
    from bench.measure.run_setup import set_up_run

    names = [name_of(path) for path in paths]
    chosen = {**DEFAULTS, **ledger.options, **options.to_json()}
    if "workload_path" not in chosen:
        chosen.setdefault("workloads", ("mlp",))
    files = {"implementations": names, "implementation_path": _outside(paths)}
    engine = set_up_run(
        Options.from_json({**chosen, **files, "baseline": names[0]}), Hosts(), measures=True
    )
    hashes = [
        digest(json.dumps(sorted(read_files(Path(path)).hashes.values())).encode())
        for path in paths
    ]
    block = ", ".join(block.name for block in engine.plan.blocks)
    errors = {entry["name"]: entry["error"] for entry in engine.catalogue["implementations"]}
    if len(set(names)) < len(names):
        fault = f"{max(names, key=names.count)} is given twice"
    elif len(engine.plan.blocks) > 1:
        fault = f"a referee judges one block, and these are several: {block}"
    elif errors[names[0]]:
        fault = f"the incumbent {paths[0]} cannot be imported: {errors[names[0]]}"
    else:
        fault = ledger.start({
            "block": block,
            "options": {name: value for name, value in chosen.items() if name in BLOCK},
            "device": f"{engine.catalogue['platform']} {engine.catalogue['device_kind']}",
            "incumbent": hashes[0],
            "name": names[0],
        })  # fmt: skip
        if not fault and hashes[0] not in relative_times(ledger.question, ledger.attempts):
            fault = f"{paths[0]} is neither the first incumbent of {ledger.path} nor one it kept"
    if fault:
        raise BadInput([fault])
    return engine, hashes


def _outside(paths: Sequence[str]) -> list[str]:
    """Return the files outside of implementations/; those inside are selected by name."""
    return [path for path in paths if Path(path).resolve().parent != ROOT / "implementations"]
