"""One self-test: trials of Lockstep and of its peers, in random order, under several loads.

Rows are appended to `reports/<run>/trials.jsonl`, which `selftest_results` evaluates. The trials of
Lockstep itself run in worker processes.
"""

import itertools
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from bench.measure.environment import child_environment, worker_environment
from bench.measure.processes.guarded import ChildError
from bench.records import derived_files, files
from bench.records.cells import Block
from bench.records.host import describe_code, describe_host
from bench.records.temporary_folders import temporary_folder
from bench.records.trial_results import SELFTEST_MANIFEST
from bench.trials.selftest import large_run
from bench.trials.selftest.background_load import load
from bench.trials.selftest.first_paint import DRAWN, first_paint
from bench.trials.selftest.peer_tools import PEERS, Pair, run_python, why_unavailable
from bench.trials.selftest.selftest_settings import (
    BASE,
    COLUMNS,
    SAMPLES,
    STEPPING,
    STEPS,
    TRIALS,
    USUAL,
    Row,
    Settings,
)

PEER_ARMS = (BASE, "5 % slower")
"""The arms that peers compare with the base of the first of STEPS."""
_REBUILD = (
    "import json, pathlib, sys; from bench.trials.selftest.large_run import rebuild; "
    "print(json.dumps(rebuild(pathlib.Path(sys.argv[1]))))"
)


class Session:
    """Runs the trials and stores their rows in a folder, which it creates."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        reasons = {name: why_unavailable(name) for name in PEERS if name in settings.peers}
        self.unavailable = {name: reason for name, reason in reasons.items() if reason}
        usable = [name for name, reason in reasons.items() if not reason]
        numbers = range(settings.peer_trials)
        self._peer_trials = [*itertools.product(usable, PEER_ARMS, numbers)]
        self._samples: list[dict[str, Any]] = []

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Run everything; `progress` is called with the number of trials done, and the total.

        Raises ChildError if another process failed.
        """
        settings = self.settings
        with temporary_folder() as self._scratch:
            pairs = self._pairs()
            self.folder.mkdir(parents=True)
            manifest: dict[str, Any] = {
                "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "settings": asdict(settings), "unavailable": self.unavailable,
                "host": describe_host(), "git": describe_code(),
            }  # fmt: skip
            done = itertools.count(1)
            with (self.folder / TRIALS).open("w", encoding="utf-8") as file:
                for pattern in settings.patterns:
                    own = (partial(self._own_rows, number) for number in range(settings.processes))
                    peers = (partial(self._peer_rows, pairs, *key) for key in self._peer_trials)
                    tasks = [*own, *peers]
                    random.Random(pattern).shuffle(tasks)
                    with load(pattern):
                        for task in tasks:
                            file.writelines(json.dumps(row) + "\n" for row in task(pattern))
                            file.flush()
                            progress(next(done), len(tasks) * len(settings.patterns))
                if settings.report_cells:
                    row = report_row(self._scratch, settings.report_cells)
                    file.write(json.dumps(row) + "\n")
            pd.DataFrame(self._samples, columns=COLUMNS).to_parquet(self.folder / SAMPLES)
            manifest["checksums"] = derived_files.checksums(self.folder, (TRIALS, SAMPLES))
            # Without this file, the folder does not count as a self-test.
            files.write_sealed(self.folder / SELFTEST_MANIFEST, manifest)

    def _own_rows(self, number: int, pattern: str) -> Iterator[Row]:
        """Run one worker process, and keep the samples of its trials."""
        block = STEPS[number % len(STEPS)]
        # The base and one other arm share the time; each further arm gets as much as one of them.
        seconds = self.settings.seconds / 2 * len(STEPPING)
        common = {"block": block.name, "attempt": f"{pattern}/{number}", "load": pattern}
        for row in self._answer(block, STEPPING, seconds, number):
            self._samples += [
                {**turn, **common, "truth": STEPPING[turn["arm"]]} for turn in row.pop("turns", ())
            ]
            yield {**row, "pattern": pattern}

    def _answer(
        self, block: Block, truths: dict[str, float], seconds: float = 0.0, seed: int = 0
    ) -> list[Row]:
        """Run a `TrialJob` in a worker process."""
        job = {"block": block.fields, "truths": truths, "seconds": seconds, "seed": seed}
        words, environment = ("-m", "bench.trials.selftest.own_trials"), self._environment(block)
        answer = run_python(words, environment, seconds, json.dumps(job))
        return [json.loads(line) for line in answer.out.splitlines()]

    def _environment(self, block: Block) -> dict[str, str]:
        """Return the environment of a worker; workers share a compilation cache."""
        return {
            **worker_environment("cpu", block.mesh.size),
            "JAX_COMPILATION_CACHE_DIR": str(self._scratch / "programs"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }

    def _pairs(self) -> dict[str, Pair]:
        """Return the base and each of PEER_ARMS as peers time them, calibrated without load."""
        if not self._peer_trials:
            return {}
        (measured,) = self._answer(STEPS[0], {BASE: 1.0})
        base, *others = (
            "from bench.trials.selftest.own_trials import call_of\n"
            f"call = call_of({STEPS[0].fields}, {round((STEPPING[arm] - 1) / measured['product'])})"
            for arm in (BASE, *PEER_ARMS)
        )
        own = measured["step_s"], self._environment(STEPS[0])
        return {arm: Pair(base, other, *own) for arm, other in zip(PEER_ARMS, others, strict=True)}

    def _peer_rows(
        self, pairs: dict[str, Pair], peer: str, arm: str, number: int, pattern: str
    ) -> Iterator[Row]:
        """Let a peer compare an arm with the base."""
        seconds = self.settings.seconds
        row: Row = {
            "kind": "peer", "pattern": pattern, "peer": peer, "program": STEPS[0].name,
            "slowdown": arm, "number": number, "seconds": seconds, "error": "",
        }  # fmt: skip
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            try:
                slower, measured_s = PEERS[peer](pairs[arm], seconds, Path(folder).resolve())
            except ChildError as error:
                yield row | {"error": str(error)}
            else:
                yield row | {"slower": slower, "measured_s": measured_s}


def report_row(folder: Path, cells: int) -> Row:
    """Rebuild the reports of a large and of a usual run in processes, as the command does."""
    run, cells = large_run.write(folder / "large", cells)
    usual, _ = large_run.write(folder / "usual", USUAL)
    built, _ = (run_python(["-c", _REBUILD, str(one)], child_environment()) for one in (run, usual))
    seconds, size = json.loads(built.out)
    return {
        "kind": "report", "cells": cells, "seconds": seconds, "bytes": size,
        "first_paint_s": first_paint(run / "report.html"),
        "usual_paint_s": first_paint(usual / "report.html"),
        "usual_drawn_s": first_paint(usual / "report.html", DRAWN),
    }  # fmt: skip
