"""Two stored runs, cell by cell: what became faster or slower, and how sure that can be.

`changes` computes every number, `setting` finds what the runs ran on differently, `words` and
`views` say and format it, `page` and `terminal` show it. Reads stored rows alone; imports no jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.analyse.run_changes import Compared, compare
from bench.present.comparison.comparison_page import content, html, markdown
from bench.records import files

if TYPE_CHECKING:
    from pathlib import Path

    from bench.records.store import Run


def build(a: Run, b: Run, output: Path, margin: float | None) -> Compared:
    """Compare run B with run A, and write `compare.html`, `.md` and `.csv` into `output`.

    Args:
      a: the run that is compared with.
      b: the run that is compared.
      output: made if it is not there.
      margin: share of a step time that is too small a difference to matter; None for the runs' own.

    Raises:
      OSError: nothing can be written there.
    """
    found = compare(a, b, margin)
    output.mkdir(parents=True, exist_ok=True)
    files.write(output / "compare.csv", found.table.to_csv(index=False, lineterminator="\n"))
    page = content(found)
    for name, text in (("compare.md", markdown(page)), ("compare.html", html(page))):
        files.write(output / name, text)
    return found
