"""The outcomes of injected faults as a table on the terminal, in Markdown and on a page."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from bench.present.rendering import environment
from bench.records import files
from bench.records.trial_results import (
    FAULTS_MARKDOWN,
    FAULTS_PAGE,
    FaultResults,
    FaultRow,
    summarize_faults,
)
from bench.trials.faults.fault_outcome import Outcome

_STYLES = {"passed": "green", "FAILED": "bold red", "skipped": "yellow"}


def verdict(outcome: Outcome) -> str:
    """`passed`, `FAILED` or `skipped`."""
    if outcome.skipped:
        return "skipped"
    return "passed" if outcome.passed else "FAILED"


def _time_to_end(outcome: Outcome) -> str:
    """`20.1 s`; empty where no process had to end."""
    return "" if outcome.cut_s is None else f"{outcome.cut_s:.1f} s"


def table(results: FaultResults) -> Table:
    """The columns that fit a terminal. `left` counts leftover processes and incomplete files."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    shown.add_column("fault", no_wrap=True)
    shown.add_column("", no_wrap=True)
    # This column alone shrinks; its lines are truncated rather than wrapped.
    shown.add_column("how its cell ended", min_width=11)
    shown.add_column("other cells", no_wrap=True)
    for heading in ("exit", "ended after", "left"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row, outcome in _rows(results):
        how = (outcome.skipped or outcome.cell).splitlines()
        shown.add_row(
            row["name"],
            Text(verdict(outcome), style=_STYLES[verdict(outcome)]),
            Text(how[0] if how else "", no_wrap=True, overflow="ellipsis"),
            outcome.others,
            "" if outcome.code is None else str(outcome.code),
            _time_to_end(outcome),
            str(len(outcome.left) + len(outcome.half_written)),
        )
    return shown


def build(folder: Path, results: FaultResults) -> Path:
    """Write the Markdown and the HTML page; return the path of the latter."""
    for name, markdown in ((FAULTS_MARKDOWN, True), (FAULTS_PAGE, False)):
        template = environment(Path(__file__).parent, markdown=markdown).get_template(f"{name}.j2")
        text = template.render(
            results=results,
            rows=_rows(results),
            summary=summarize_faults(results),
            verdict=verdict,
            time_to_end=_time_to_end,
        )
        files.write(folder / name, text)
    return folder / FAULTS_PAGE


def _rows(results: FaultResults) -> list[tuple[FaultRow, Outcome]]:
    return [(row, Outcome(**row["outcome"])) for row in results["rows"]]
