"""Injection of faults into runs, several at once, and storage of the outcomes."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.records import files
from bench.records.host import describe_code, describe_host
from bench.records.temporary_folders import temporary_folder
from bench.records.trial_results import FAULTS, FaultResults, FaultRow
from bench.trials.faults.fault_table import Fault
from bench.trials.faults.observed_run import Lab, LabError, Outcome, UnavailableError


def run(faults: Sequence[Fault], jobs: int, done: Callable[[Fault, Outcome], None]) -> FaultResults:
    """Inject faults, `jobs` at a time; `done` is called with the outcome of each."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell ignores SIGINT in background jobs, and the runs started here would inherit this.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    started, began = datetime.now(UTC), time.monotonic()
    stop = threading.Event()

    def inject_one(fault: Fault) -> FaultRow:
        outcome = inject(fault, stop)
        if not stop.is_set():
            done(fault, outcome)
        return FaultRow(
            name=fault.name,
            kind=fault.kind,
            how=fault.how,
            passed=outcome.passed,
            outcome=asdict(outcome),
        )

    with ThreadPoolExecutor(jobs) as pool:
        try:
            # Faults that wait for a deadline are neighbours in the table and leave the cores idle.
            # Shuffled, other faults use the cores in the meantime.
            order = random.Random(0).sample(range(len(faults)), len(faults))
            rows = dict(zip(order, pool.map(inject_one, (faults[i] for i in order)), strict=True))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return FaultResults(
        started_at=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        host=describe_host(),
        git=describe_code(),
        rows=[rows[number] for number in range(len(faults))],
    )


def inject(fault: Fault, stop: threading.Event) -> Outcome:
    """Inject one fault into runs in a temporary folder; setting `stop` ends it early."""
    began = time.monotonic()
    outcome = Outcome()
    with temporary_folder() as folder:
        try:
            fault.trial(Lab(folder, stop=stop), outcome)
        except UnavailableError as error:
            outcome = Outcome(skipped=str(error))
        except LabError as error:
            outcome.deviations.append(str(error))
    outcome.seconds = time.monotonic() - began
    return outcome


def write(folder: Path, results: FaultResults) -> None:
    """Store the results in a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / FAULTS, files.sealed(json.dumps(results, indent=2)))
