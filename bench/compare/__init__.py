"""Two stored runs, cell by cell: what became faster or slower, and how sure that can be.

`changes` computes every number, `setting` finds what the runs ran on differently, `words` and
`views` say and format it, `page` and `terminal` show it. Reads stored rows alone; imports no jax.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench import store
from bench.compare.changes import Compared, compare
from bench.compare.page import content, html, markdown

if TYPE_CHECKING:
    from pathlib import Path


def build(a: Path, b: Path, output: Path, margin: float | None) -> Compared:
    """Compare run B with run A, and write `compare.html`, `.md` and `.csv` into `output`.

    Args:
      a: folder of the run that is compared with.
      b: folder of the run that is compared.
      output: made if it is not there.
      margin: share of a step time that is too small a difference to matter; None for the runs' own.

    Raises:
      StoreError: one of them is not a readable run.
      OSError: nothing can be written there.
    """
    found = compare(store.load(a), store.load(b), margin)
    output.mkdir(parents=True, exist_ok=True)
    found.table.to_csv(output / "compare.csv", index=False, lineterminator="\n")
    page = content(found)
    for name, text in (("compare.md", markdown(page)), ("compare.html", html(page))):
        (output / name).write_text(text, encoding="utf-8", newline="\n")
    return found
