"""One self-test: trials of Lockstep and of its peers, in random order, under several loads.

Rows are appended to `reports/<run>/trials.jsonl`, and `selftest_page` evaluates them. The trials of
Lockstep itself run in worker processes.
"""

import itertools
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.measure.environment import child_environment, worker_environment
from bench.measure.processes.guarded import ChildError, ask
from bench.records.arms import TWIN
from bench.records.cells import Block
from bench.records.host import describe_code, describe_host
from bench.records.temporary_folders import temporary_folder
from bench.trials.selftest import large_run, planted_kernel
from bench.trials.selftest.background_load import load
from bench.trials.selftest.first_paint import DRAWN, first_paint
from bench.trials.selftest.peer_tools import PEERS, Program, spinning
from bench.trials.selftest.selftest_settings import (
    BASE,
    COLUMNS,
    LONGER,
    SAMPLES,
    SPIN,
    SPINNING,
    STEPPING,
    STEPS,
    TRIALS,
    USUAL,
    Manifest,
    Row,
    Settings,
    close,
)

SPIN_S = 0.001
"""Duration of the base's spin."""
_TIMEOUT_S = 600.0
_REBUILD = (
    "import json, pathlib, sys; from bench.trials.selftest.large_run import rebuild; "
    "print(json.dumps(rebuild(pathlib.Path(sys.argv[1]))))"
)

Task = Callable[[], Iterator[Row]]


class Session:
    """Runs the trials and stores their rows in a folder, which it creates."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        reasons = {name: PEERS[name].why_unavailable() for name in PEERS if name in settings.peers}
        self.unavailable = {name: reason for name, reason in reasons.items() if reason}
        usable = [name for name, reason in reasons.items() if not reason]
        python = [name for name in usable if PEERS[name].times_python]
        self._peer_trials = [
            (peer, program, arm, number)
            for program, peers, arms, count in (
                (SPIN, usable, (TWIN, "2 % slower", "5 % slower"), settings.peer_trials),
                (STEPS[0].name, python, (BASE, "5 % slower"), settings.peer_trials // 2),
            )
            for peer in peers
            for arm in arms
            for number in range(count)
        ]
        self._samples: list[dict[str, Any]] = []

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Run everything; `progress` is called with the number of trials done, and the total.

        Raises BadInput, or ChildError if another process failed.
        """
        settings = self.settings
        with temporary_folder() as self._scratch:
            self._kernel = planted_kernel.build(self._scratch / "kernel")
            self._iterations = self._kernel.iterations_for(SPIN_S)
            programs = self._programs()
            self.folder.mkdir(parents=True)
            manifest = Manifest(
                started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                settings=asdict(settings),
                iterations=self._iterations,
                unavailable=self.unavailable,
                host=describe_host(),
                git=describe_code(),
                checksums={},
            )
            done = itertools.count(1)
            with (self.folder / TRIALS).open("w", encoding="utf-8") as file:
                for pattern in settings.patterns:
                    tasks = [*self._own_tasks(pattern), *self._peer_tasks(pattern, programs)]
                    random.Random(f"{settings.seed}/{pattern}").shuffle(tasks)
                    with load(pattern, settings.seed):
                        for task in tasks:
                            file.writelines(json.dumps(row) + "\n" for row in task())
                            file.flush()
                            progress(next(done), len(tasks) * len(settings.patterns))
                if settings.report_cells:
                    row = report_row(self._scratch, settings.report_cells)
                    file.write(json.dumps(row) + "\n")
            pd.DataFrame(self._samples, columns=COLUMNS).to_parquet(self.folder / SAMPLES)
            close(self.folder, manifest)

    def _own_tasks(self, pattern: str) -> Iterator[Task]:
        # The base and one other arm share the time; each further arm gets as much as one of them.
        pair_s = self.settings.seconds / 2
        spin = {"truths": SPINNING, "trials": self.settings.trials}
        for number in range(-(-self.settings.processes // 2)):
            job = {**spin, "block": None, "seconds": pair_s * len(SPINNING), "seed": number}
            yield partial(self._own_rows, pattern, job)
        for number in range(self.settings.processes):
            block = STEPS[number % len(STEPS)].fields
            step = {"truths": STEPPING, "trials": 1, "seconds": LONGER * pair_s * len(STEPPING)}
            yield partial(self._own_rows, pattern, {**step, "block": block, "seed": number})

    def _own_rows(self, pattern: str, job: dict[str, Any]) -> Iterator[Row]:
        """Run one worker process, and keep the samples of its trials."""
        block = Block.of(job["block"]).name if job["block"] else SPIN
        for row in self._answer(job):
            attempt = f"{pattern}/{job['seed']}/{row.get('number')}"
            self._samples += [
                {
                    **turn, "block": block, "attempt": attempt, "load": pattern,
                    "truth": job["truths"][turn["arm"]],
                }
                for turn in row.pop("turns", ())
            ]  # fmt: skip
            yield {**row, "pattern": pattern}

    def _answer(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Run a `TrialJob` in a worker process."""
        library = str(self._kernel.library)
        out = _run_python(
            ["-m", "bench.trials.selftest.own_trials"],
            self._environment(Block.of(job["block"]) if job["block"] else None),
            json.dumps(job | {"library": library, "iterations": self._iterations}),
        )
        return [json.loads(line) for line in out.splitlines()]

    def _environment(self, block: Block | None) -> dict[str, str]:
        """Return the environment of a worker; workers share a compilation cache."""
        return {
            **worker_environment("cpu", block.mesh.size if block else 1),
            "JAX_COMPILATION_CACHE_DIR": str(self._scratch / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def _programs(self) -> dict[tuple[str, str], Program]:
        """Return the programs that peers time, by name and arm, calibrated without load."""
        needed = dict.fromkeys((program, arm) for _, program, arm, _ in self._peer_trials)
        found = {
            (SPIN, arm): spinning(self._kernel, round(self._iterations * SPINNING[arm]))
            for program, arm in needed
            if program == SPIN
        }
        if len(found) == len(needed):
            return found
        step, job = STEPS[0], {"truths": {BASE: 1.0}, "trials": 0, "seconds": 0.0, "seed": 0}
        (measured,) = self._answer(job | {"block": step.fields})
        for program, arm in needed.keys() - found:
            products = round((STEPPING[arm] - 1) / measured["product"])
            setup = (
                "from bench.trials.selftest.own_trials import call_of\n"
                f"call = call_of({json.dumps(step.fields)!r}, {products})\n"
            )
            found[program, arm] = Program(setup, measured["step_s"], self._environment(step))
        return found

    def _peer_tasks(self, pattern: str, programs: dict[tuple[str, str], Program]) -> Iterator[Task]:
        def task(peer: str, program: str, arm: str, number: int) -> Iterator[Row]:
            base = TWIN if program == SPIN else BASE
            seconds = self.settings.seconds * (1 if program == SPIN else LONGER)
            row: Row = {
                "kind": "peer", "pattern": pattern, "peer": peer, "program": program,
                "slowdown": arm, "number": number, "seconds": seconds, "error": "",
            }  # fmt: skip
            with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
                pair = (programs[program, base], programs[program, arm])
                try:
                    trial = PEERS[peer].trial(*pair, seconds, Path(folder).resolve())
                except ChildError as error:
                    yield row | {"error": str(error)}
                else:
                    yield row | asdict(trial)

        for key in self._peer_trials:
            yield partial(task, *key)


def report_row(folder: Path, cells: int) -> Row:
    """Rebuild the reports of a large and of a usual run in processes, as the command does."""
    run, cells = large_run.write(folder / "large", cells)
    usual, _ = large_run.write(folder / "usual", USUAL)
    out, _ = (_run_python(["-c", _REBUILD, str(one)], child_environment()) for one in (run, usual))
    seconds, size = json.loads(out)
    return {
        "kind": "report", "cells": cells, "seconds": seconds, "bytes": size,
        "first_paint_s": first_paint(run / "report.html"),
        "usual_paint_s": first_paint(usual / "report.html"),
        "usual_drawn_s": first_paint(usual / "report.html", DRAWN),
    }  # fmt: skip


def _run_python(words: Sequence[str], environment: Mapping[str, str], question: str = "") -> str:
    """Return the output of a Python program in a process of its own; ChildError if it fails."""
    answer = ask([sys.executable, *words], question, environment, _TIMEOUT_S)
    if answer.code != 0:
        raise ChildError(f"a process {answer.ending}. Its last lines:\n{answer.quoted_lines()}")
    return answer.out
