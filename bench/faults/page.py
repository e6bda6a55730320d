"""What the faults left behind, as a table in Markdown. Imports no jax."""

from __future__ import annotations

from pathlib import Path

from bench import files, numbers
from bench.faults.outcome import Outcome
from bench.faults.session import Results, Row
from bench.report.templates import environment

PAGE = "faults.md"


def word(outcome: Outcome) -> str:
    """How it went, in a word."""
    if outcome.skipped:
        return "skipped"
    return "passed " if outcome.passed else "FAILED "


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


def build(folder: Path, results: Results) -> Path:
    """Write the table and return its path."""
    template = environment(Path(__file__).parent, markdown=True).get_template("faults.md.j2")
    rows = [(row, Outcome(**row["outcome"])) for row in results["rows"]]
    text = template.render(results=results, rows=rows, summary=summary(results), word=word)
    path = folder / PAGE
    files.write(path, text)
    return path
