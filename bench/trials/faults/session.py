"""Injects faults, some at once, and keeps what was seen. Imports no jax."""

from __future__ import annotations

import json
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict, cast

from bench.records import files
from bench.records.host import describe_code, describe_host
from bench.trials.faults.lab import Lab, LabError, UnavailableError
from bench.trials.faults.outcome import Outcome
from bench.trials.faults.table import Fault

RESULTS = "faults.json"


class Row(TypedDict):
    """One fault and its outcome, as stored."""

    name: str
    kind: str
    how: str
    passed: bool
    outcome: dict[str, Any]
    """The fields of bench.trials.faults.outcome.Outcome."""


class Results(TypedDict):
    """`faults.json`."""

    started_at: str
    seconds: float
    host: dict[str, Any]
    git: dict[str, Any]
    rows: list[Row]


def run(faults: Sequence[Fault], jobs: int, done: Callable[[Fault, Outcome], None]) -> Results:
    """Inject faults, `jobs` at a time; `done` is told of each that has been looked after."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so, and what is started from here would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    started, began = datetime.now(UTC), time.monotonic()

    stop = threading.Event()

    def one(fault: Fault) -> Row:
        outcome = inject(fault, stop)
        if not stop.is_set():
            done(fault, outcome)
        return Row(
            name=fault.name,
            kind=fault.kind,
            how=fault.how,
            passed=outcome.passed,
            outcome=asdict(outcome),
        )

    with ThreadPoolExecutor(jobs) as pool:
        try:
            # Those that wait for a deadline are neighbours in the table, and leave the cores idle:
            # in another order, others run meanwhile.
            order = random.Random(0).sample(range(len(faults)), len(faults))
            found = dict(zip(order, pool.map(one, (faults[i] for i in order)), strict=True))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return Results(
        started_at=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        host=describe_host(),
        git=describe_code(),
        rows=[found[number] for number in range(len(faults))],
    )


def inject(fault: Fault, stop: threading.Event) -> Outcome:
    """Inject one fault, in a folder of its own; ended early once `stop` is set."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        try:
            outcome = fault.trial(Lab(Path(folder), stop=stop))
        except UnavailableError as error:
            outcome = Outcome(skipped=str(error))
        except LabError as error:
            outcome = Outcome(deviations=[str(error)])
    outcome.seconds = time.monotonic() - began
    return outcome


def write(folder: Path, results: Results) -> None:
    """Keep the results in a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / RESULTS, json.dumps(results, indent=2) + "\n")


def read(folder: Path) -> Results:
    """What `write` wrote.

    Raises:
      FileNotFoundError: it is no such folder.
    """
    return cast("Results", json.loads((folder / RESULTS).read_text(encoding="utf-8")))
