"""A comparison of two runs as an HTML page, a Markdown page and a CSV file."""

import shlex
from pathlib import Path
from typing import Any

from bench.analyse.run_changes import Compared, compare
from bench.present.columns import Column, Table, item
from bench.present.comparison import comparison_sentences, comparison_tables
from bench.present.rendering import write_pages
from bench.present.run_environment import started
from bench.records import files
from bench.records.store import Run

COMMAND = ("python", "-m", "bench", "compare")


def build(a: Run, b: Run, output: Path, margin: float | None) -> Compared:
    """Compare run B with run A, and write `compare.html`, `.md` and `.csv` into a folder.

    Args:
      a: the run to compare with.
      b: the run to compare.
      output: the folder; it is created if missing.
      margin: relative difference of step times that is negligible; None for the runs' own.

    Raises:
      OSError: the folder cannot be written.
    """
    compared = compare(a, b, margin)
    output.mkdir(parents=True, exist_ok=True)
    files.write(output / "compare.csv", compared.table.to_csv(index=False, lineterminator="\n"))
    write_pages(output, "compare", **content(compared))
    return compared


def content(compared: Compared) -> dict[str, Any]:
    """Return everything that the page shows, by the names that its template uses."""
    a, b = compared.a, compared.b
    facts = [
        {"name": "Run", "kind": "", "a": a["run"], "b": b["run"]},
        {"name": "Started", "kind": "", "a": started(a), "b": started(b)},
        *compared.differences,
    ]
    sides = Column("a", "A"), Column("b", "B")
    name = Column("name", "", detail=lambda row: item(row, "kind"))
    absent = Column("a", "Only in"), Column("b", "Because"), comparison_tables.CELLS
    margin = f"{100 * compared.margin:g}"
    return {
        "a": a["run"],
        "b": b["run"],
        "setting": comparison_sentences.setting(compared),
        "apart": comparison_sentences.APART,
        "tally": comparison_sentences.tally(compared),
        "basis": comparison_sentences.basis(compared),
        "runs": Table("The two runs, and everything recorded that differs", (name, *sides), facts),
        "caveats": comparison_sentences.caveats(compared),
        "blocks": comparison_tables.blocks(compared),
        "endings": Table(
            "Cells that ended differently, with the reasons",
            (*sides, comparison_tables.CELLS),
            comparison_tables.endings(compared),
        ),
        "missing": Table(
            "Cells that only one of the runs has, and what the other lacks",
            absent,
            comparison_tables.missing(compared),
        ),
        "command": shlex.join([*COMMAND, a["run"], b["run"], "--margin", margin]),
    }
