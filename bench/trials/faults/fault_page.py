"""The outcomes of injected faults as a table on the terminal, in Markdown and on a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.records.trial_results import FaultResults, summarize_faults

STYLES = {"passed": "green", "FAILED": "bold red", "skipped": "yellow"}
"""Terminal styles of verdicts."""

FACT = (
    "Each fault is injected into a real run that also measures correct implementations. No fault "
    "may leave a process, an incomplete file or an unreadable report behind. Ended after: time "
    "from the fault to the end of the process that had it."
)


def verdict(outcome: Mapping[str, Any]) -> str:
    """Return `passed`, `FAILED` or `skipped`, from the fields of an outcome."""
    if outcome["skipped"]:
        return "skipped"
    return "FAILED" if outcome["deviations"] else "passed"


def _ending(row: Mapping[str, Any]) -> str:
    return str(row["skipped"] or row["cell"])


def _time_to_end(row: Mapping[str, Any]) -> str:
    return "" if row["cut_s"] is None else f"{row['cut_s']:.1f} s"


def _as_expected(row: Mapping[str, Any]) -> str:
    no = f"no: {'; '.join(row['deviations'])}"
    return {"passed": "yes", "skipped": "skipped", "FAILED": no}[verdict(row)]


COLUMNS = (
    Column("name", "Fault", detail=lambda row: str(row["kind"])),
    Column("how", "How it is injected"),
    Column("cell", "How its cell ended, or what the run reported", value=_ending),
    Column("others", "Other cells"),
    Column("code", "Exit code", format="count"),
    Column("cut_s", "Ended after", value=_time_to_end),
    Column("left", "Leftover processes", value=lambda row: ", ".join(row["left"]) or "none"),
    Column("half_written", "Incomplete files",
           value=lambda row: ", ".join(row["half_written"]) or "none"),
    Column("report", "Report", value=lambda row: row["report"] or "readable"),
    Column("passed", "As expected", value=_as_expected),
)  # fmt: skip


SHORT = (
    Column("name", "Fault"),
    Column("passed", "", value=verdict),
    Column("cell", "How its cell ended", value=lambda row: shorten(_ending(row), 40)),
    *(column for column in COLUMNS if column.key in ("others", "code", "cut_s")),
    Column("left", "Left", value=lambda row: str(len(row["left"]) + len(row["half_written"]))),
)
"""The columns that fit on a terminal; `left` counts leftover processes and incomplete files."""


def table(results: FaultResults, columns: Sequence[Column] = COLUMNS, *facts: str) -> Table:
    """Return the table of the outcomes of all faults."""
    rows = [{**row, **row["outcome"]} for row in results["rows"]]
    return Table("What each fault left", columns, rows, facts)


def build(folder: Path, results: FaultResults) -> Path:
    """Write the Markdown and the HTML page; return the path of the latter."""
    return write_pages(
        folder,
        "faults",
        Path(__file__).parent,
        results=results,
        table=table(results, COLUMNS, FACT),
        summary=summarize_faults(results),
    )
