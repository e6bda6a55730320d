"""The index of published runs: Markdown that GitHub shows, and a page."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from bench.analyse import cell_history
from bench.present.gallery import history_tables
from bench.present.gallery.entries import KINDS, Entry, find
from bench.present.rendering import render
from bench.records import files

MARKDOWN, PAGE = "README.md", "index.html"


def build(reports: Path, also: Iterable[str] = ()) -> tuple[Path, Sequence[Entry]]:
    """Write `README.md` and `index.html`, which list all published runs, into a folder of reports.

    `also` are folders in it that are about to be added to git.

    Returns:
      The page, and its entries.

    Raises:
      EntryError: a published folder cannot be read; nothing is written then.
    """
    entries = find(reports, also)
    sections = [
        (kind, about, [entry for entry in entries if entry.kind == kind])
        for kind, about in KINDS.items()
    ]
    histories = cell_history.find(entry.run for entry in entries if entry.run)
    for name in (MARKDOWN, PAGE):
        markdown = name == MARKDOWN
        tables = history_tables.tables(histories, markdown=markdown)
        history = {"about": history_tables.ABOUT, "tables": tables}
        text = render("index", markdown=markdown, sections=sections, history=history, quote=quote)
        files.write(reports / name, text)
    return reports / PAGE, entries
