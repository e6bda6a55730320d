"""The files of a stored self-test, and the stored results of injected faults."""

from pathlib import Path
from typing import Any, TypedDict

from bench.records import files, numbers
from bench.records.store import StoreError

SELFTEST_MANIFEST = "selftest.json"
"""Written when all trials of a self-test are stored."""
SELFTEST_FIGURES = "figures.json"

FAULTS = "faults.json"
FAULTS_PAGE = "faults.html"
FAULTS_MARKDOWN = "faults.md"


class FaultRow(TypedDict):
    """One injected fault and its outcome."""

    name: str
    kind: str
    how: str
    passed: bool
    outcome: dict[str, Any]
    """The fields of bench.trials.faults.observed_run.Outcome."""


class FaultResults(TypedDict):
    """The contents of FAULTS."""

    started_at: str
    seconds: float
    host: dict[str, Any]
    git: dict[str, Any]
    rows: list[FaultRow]


def read(path: Path) -> dict[str, Any]:
    """Read one of these JSON files, which must exist; StoreError if it has changed since."""
    content = files.unsealed(path.read_bytes())
    if content is None:
        raise StoreError(f"{path.as_posix()} is damaged: {files.CHANGED}")
    return content


def summarize_faults(results: FaultResults) -> str:
    """`44 faults: 43 ended as expected, 1 skipped; in 9.5 min`."""
    rows = results["rows"]
    skipped = sum(bool(row["outcome"]["skipped"]) for row in rows)
    failed = sum(bool(row["outcome"]["deviations"]) for row in rows)
    parts = [f"{len(rows) - skipped - failed} ended as expected"]
    parts += [f"{failed} did not"] * bool(failed) + [f"{skipped} skipped"] * bool(skipped)
    took = numbers.clock(results["seconds"])
    return f"{numbers.count(len(rows), 'fault')}: {', '.join(parts)}; in {took}"
