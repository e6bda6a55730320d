"""Puts a comparison onto one HTML page and one Markdown page, in the look of the report."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.compare import views, words
from bench.report.templates import environment
from bench.report.views import started

if TYPE_CHECKING:
    from bench.compare.changes import Compared
    from bench.compare.setting import Difference
    from bench.report.views import Table
    from bench.report.words import Caveat


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
    endings: list[views.Ending]
    missing: list[views.Missing]
    command: str


def content(found: Compared) -> Content:
    """Everything the page shows."""
    margin = f"{100 * found.margin:g}"
    return Content(
        a=found.a["run"],
        b=found.b["run"],
        started_a=started(found.a),
        started_b=started(found.b),
        setting=words.setting(found),
        apart=words.APART,
        tally=words.tally(found),
        basis=words.basis(found),
        differences=found.differences,
        caveats=words.caveats(found),
        blocks=views.blocks(found),
        endings=views.endings(found),
        missing=views.missing(found),
        command=shlex.join([*COMMAND, found.a["run"], found.b["run"], "--margin", margin]),
    )


def html(page: Content) -> str:
    """One file with no links to fetch and no scripts."""
    return environment(markdown=False).get_template("compare.html.j2").render(page=page)


def markdown(page: Content) -> str:
    """The same in GitHub's Markdown."""
    return environment(markdown=True).get_template("compare.md.j2").render(page=page)
