"""Puts a comparison onto one HTML page and one Markdown page, in the look of the report."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.present.comparison import comparison_sentences, comparison_tables
from bench.present.rendering import environment
from bench.present.run_environment import started

if TYPE_CHECKING:
    from bench.analyse.run_changes import Compared
    from bench.analyse.run_settings import Difference
    from bench.present.caveats import Caveat
    from bench.present.text_tables import Table


COMMAND = ("python", "-m", "bench", "compare")


@dataclass(frozen=True)
class Content:
    """Everything on the page."""

    a: str
    b: str
    """Names of the runs."""
    started_a: str
    started_b: str
    setting: str
    apart: str
    tally: str
    basis: str
    differences: list[Difference]
    caveats: list[Caveat]
    blocks: list[Table]
    endings: list[comparison_tables.Ending]
    missing: list[comparison_tables.Missing]
    command: str


def content(found: Compared) -> Content:
    """Everything the page shows."""
    margin = f"{100 * found.margin:g}"
    return Content(
        a=found.a["run"],
        b=found.b["run"],
        started_a=started(found.a),
        started_b=started(found.b),
        setting=comparison_sentences.setting(found),
        apart=comparison_sentences.APART,
        tally=comparison_sentences.tally(found),
        basis=comparison_sentences.basis(found),
        differences=found.differences,
        caveats=comparison_sentences.caveats(found),
        blocks=comparison_tables.blocks(found),
        endings=comparison_tables.endings(found),
        missing=comparison_tables.missing(found),
        command=shlex.join([*COMMAND, found.a["run"], found.b["run"], "--margin", margin]),
    )


def html(page: Content) -> str:
    """One file with no links to fetch and no scripts."""
    return environment(markdown=False).get_template("compare.html.j2").render(page=page)


def markdown(page: Content) -> str:
    """The same in GitHub's Markdown."""
    return environment(markdown=True).get_template("compare.md.j2").render(page=page)
