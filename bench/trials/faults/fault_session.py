"""Injection of faults into runs, several at once, and the outcomes, which are stored and shown."""

import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.records import files
from bench.records.host import describe_code, describe_host
from bench.records.temporary_folders import temporary_folder
from bench.records.trial_results import FAULTS, FaultResults, FaultRow, summarize_faults
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
        found = asdict(outcome)
        return FaultRow(
            name=fault.name, kind=fault.kind, how=fault.how,
            passed=verdict(found) == "passed", outcome=found,
        )  # fmt: skip

    with ThreadPoolExecutor(jobs) as pool:
        try:
            # Faults that wait for a deadline are neighbours in the table and leave the cores idle.
            # Shuffled, other faults use the cores in the meantime.
            order = random.Random(0).sample(faults, len(faults))
            rows = dict(zip(order, pool.map(inject_one, order), strict=True))
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return FaultResults(
        started_at=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        host=describe_host(),
        git=describe_code(),
        rows=[rows[fault] for fault in faults],
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


STYLES = {"passed": "green", "FAILED": "bold red", "skipped": "yellow"}
"""Terminal styles of verdicts."""

FACT = (
    "Each fault is injected into a real run that also measures correct implementations. One that "
    "leaves a process, an incomplete file or an unreadable report behind has failed."
)


def verdict(outcome: Mapping[str, Any]) -> str:
    """Return `passed`, `FAILED` or `skipped`, from the fields of an outcome."""
    return "skipped" if outcome["skipped"] else "FAILED" if outcome["deviations"] else "passed"


COLUMNS = (
    Column("name", "Fault", detail=lambda row: str(row["kind"])),
    Column("how", "How it is injected"),
    Column("cell", "How its cell ended, or what the run reported",
           value=lambda row: row["skipped"] or row["cell"]),
    Column("others", "Other cells"),
    Column("code", "Exit code", format="count"),
    Column("passed", "Result", value=verdict, detail=lambda row: "; ".join(row["deviations"])),
)  # fmt: skip


def build(folder: Path, results: FaultResults) -> Path:
    """Store the results in a folder, which is created, with their pages; return the HTML page."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_sealed(folder / FAULTS, results)
    rows = [{**row, **row["outcome"]} for row in results["rows"]]
    return write_pages(
        folder,
        "faults",
        Path(__file__).parent,
        results=results,
        table=Table("What each fault left", COLUMNS, rows, [FACT]),
        summary=summarize_faults(results),
    )
