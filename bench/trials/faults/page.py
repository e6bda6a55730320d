"""What the faults left behind: a table on the terminal, in Markdown and on a page.

Imports no jax.
"""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from bench.present.rendering import environment
from bench.records import files, numbers
from bench.trials.faults.outcome import Outcome
from bench.trials.faults.session import Results, Row

PAGE = "faults.html"
MARKDOWN = "faults.md"

_STYLES = {"passed": "green", "FAILED": "bold red", "skipped": "yellow"}


def word(outcome: Outcome) -> str:
    """How it went, in a word."""
    if outcome.skipped:
        return "skipped"
    return "passed" if outcome.passed else "FAILED"


def cut(outcome: Outcome) -> str:
    """`20.1 s`; empty where no process was to end."""
    return "" if outcome.cut_s is None else f"{outcome.cut_s:.1f} s"


def as_expected(row: Row) -> bool:
    """Whether nothing was lost; what could not be injected here has lost nothing."""
    return row["passed"] or bool(row["outcome"]["skipped"])


def summary(results: Results) -> str:
    """`44 faults: 43 as they must be, 1 skipped`, and how long it took."""
    rows = results["rows"]
    skipped = sum(bool(row["outcome"]["skipped"]) for row in rows)
    failed = sum(not as_expected(row) for row in rows)
    parts = [f"{len(rows) - skipped - failed} ended as they must"]
    parts += [f"{failed} did not"] * bool(failed) + [f"{skipped} skipped"] * bool(skipped)
    took = numbers.seconds(results["seconds"])
    return f"{numbers.count(len(rows), 'fault')}: {', '.join(parts)}; in {took}"


def table(results: Results) -> Table:
    """What a terminal has room for. `left` counts processes left over and files not whole."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    shown.add_column("fault", no_wrap=True)
    shown.add_column("", no_wrap=True)
    # The one column that gives way; its lines are cut rather than wrapped.
    shown.add_column("how its cell ended", min_width=11)
    shown.add_column("beside it", no_wrap=True)
    for heading in ("exit", "cut", "left"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row, outcome in _rows(results):
        how = (outcome.skipped or outcome.cell).splitlines()
        shown.add_row(
            row["name"],
            Text(word(outcome), style=_STYLES[word(outcome)]),
            Text(how[0] if how else "", no_wrap=True, overflow="ellipsis"),
            outcome.others,
            "" if outcome.code is None else str(outcome.code),
            cut(outcome),
            str(len(outcome.left) + len(outcome.half_written)),
        )
    return shown


def build(folder: Path, results: Results) -> Path:
    """Write the pages, and return the path of the one to look at."""
    for name, markdown in ((MARKDOWN, True), (PAGE, False)):
        template = environment(Path(__file__).parent, markdown=markdown).get_template(f"{name}.j2")
        text = template.render(
            results=results, rows=_rows(results), summary=summary(results), word=word, cut=cut
        )
        files.write(folder / name, text)
    return folder / PAGE


def _rows(results: Results) -> list[tuple[Row, Outcome]]:
    return [(row, Outcome(**row["outcome"])) for row in results["rows"]]
