"""The outcomes of injected faults as a table on the terminal, in Markdown and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rich.table
from rich.text import Text

from bench.present import terminal
from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.records.trial_results import FaultResults, summarize_faults

_STYLES = {"passed": "green", "FAILED": "bold red", "skipped": "yellow"}


def verdict(outcome: Mapping[str, Any]) -> str:
    """`passed`, `FAILED` or `skipped`, from the fields of an outcome."""
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


def table(results: FaultResults) -> rich.table.Table:
    """The columns that fit a terminal. `left` counts leftover processes and incomplete files."""
    # The column of endings alone shrinks; its lines are truncated rather than wrapped.
    fault, how, ending, others = (
        rich.table.Column(name, no_wrap=name != "how its cell ended", min_width=width)
        for name, width in (("fault", 0), ("", 0), ("how its cell ended", 11), ("others", 0))
    )
    rows = (
        (
            row["name"],
            Text(verdict(row), style=_STYLES[verdict(row)]),
            Text(_ending(row).partition("\n")[0], no_wrap=True, overflow="ellipsis"),
            row["others"],
            "" if row["code"] is None else str(row["code"]),
            _time_to_end(row),
            str(len(row["left"]) + len(row["half_written"])),
        )
        for row in _rows(results)
    )
    return terminal.table(fault, how, ending, others, ">exit", ">ended", ">left", rows=rows, gap=1)


def build(folder: Path, results: FaultResults) -> Path:
    """Write the Markdown and the HTML page; return the path of the latter."""
    return write_pages(
        folder,
        "faults",
        Path(__file__).parent,
        results=results,
        table=Table("Faults", COLUMNS, _rows(results)),
        summary=summarize_faults(results),
    )


def _rows(results: FaultResults) -> list[dict[str, Any]]:
    return [{**row, **row["outcome"]} for row in results["rows"]]
