"""The report as one HTML file: its first screen as text, the rest from figures that it carries."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from bench.present import energy_sentences, page_data, sentences, text_tables, vega
from bench.present.rendering import environment, stylesheet
from bench.records import numbers
from bench.records.statuses import STATUSES, VERDICT_STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.analyse.cell_table import Tables
    from bench.present.predicted_curves import Projected
    from bench.records.rows import Manifest

WEB = Path(__file__).with_name("web")

SCRIPTS = (
    *("format.js", "dom.js", "table.js", "data.js", "state.js", "selection.js"),
    *("chart_style.js", "chart_figure.js", "focused_cell.js", "chart_groups.js"),
    *sorted(path.relative_to(WEB).as_posix() for path in (WEB / "charts").glob("*.js")),
    *("cell.js", "lists.js", "training.js", "controls.js", "app.js"),
)
"""In the order of their definitions; together they are one script."""

FIRST = 8
"""Blocks of a subject that are shown at first; the others are a click away."""


@dataclass(frozen=True)
class Fastest:
    """What is fastest in one block."""

    place: str
    leaders: list[str]
    alone: str
    """The one implementation where there is nothing to compare it with; else empty."""
    step: str
    ratio: str
    """The first leader's, to the baseline."""
    interval: str
    text: str
    floor: str


@dataclass(frozen=True)
class Subject:
    """A workload at one size, with one set of options."""

    name: str
    blocks: list[Fastest]


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    run: str
    headline: str
    tally: str
    started: str
    subjects: list[Subject]
    verdicts: list[tuple[str, int]]
    price: str
    failures: list[tuple[int, str]]
    caveats: list[sentences.Caveat]
    machine: str
    environment: list[tuple[str, str]]
    endings: list[text_tables.Ending]
    timed: bool
    traced: bool
    projected: Projected | None
    """None if the run has no projection."""
    first: int
    licence: str
    style: Markup
    data: Markup
    library: Markup
    code: Markup

    @property
    def policy(self) -> str:
        """Content-Security-Policy: nothing is fetched, and nothing runs but the page's own."""
        scripts = " ".join(_source(text) for text in (self.library, self.code))
        images = "img-src data:; " if self.projected else ""
        return (
            f"default-src 'none'; script-src {scripts}; style-src {_source(self.style)}; {images}"
            "base-uri 'none'; form-action 'none'"
        )


def html(
    found: Tables,
    manifest: Manifest,
    summaries: Mapping[str, sentences.Summary],
    projected: Projected | None = None,
) -> str:
    """The page of a run.

    Args:
      found: its tables.
      manifest: of the run.
      summaries: those of `words.summaries`.
      projected: its projection, if it has one.
    """
    template = environment(WEB, markdown=False).get_template("page.html.j2")
    return template.render(page=make(found, manifest, summaries, projected))


def make(
    found: Tables,
    manifest: Manifest,
    summaries: Mapping[str, sentences.Summary],
    projected: Projected | None = None,
) -> Page:
    """Put the page together; arguments as of `html`."""
    cells = found.cells
    of_subject: dict[str, list[Fastest]] = {}
    for summary in summaries.values():
        of_subject.setdefault(summary.comparison.subject, []).append(_fastest(summary))
    verdicts = Counter(cells["verdict"].dropna()) if len(cells) else Counter[str]()
    ended = Counter(cells["status"]) if len(cells) else Counter[str]()
    # Everything in here is ours, or escaped for where it stands.
    return Page(
        run=manifest["run"],
        headline=sentences.headline(list(summaries.values())),
        tally=sentences.tally(cells),
        started=text_tables.started(manifest),
        subjects=[Subject(name, rows) for name, rows in of_subject.items()],
        verdicts=[(word, verdicts[word]) for word in VERDICT_STYLES if verdicts[word]],
        price=sentences.price(cells),
        failures=[
            (ended[name], status.label)
            for name, status in STATUSES.items()
            if ended[name] and status.failure
        ],
        caveats=sentences.caveats(found, manifest),
        machine=text_tables.machine(manifest),
        environment=text_tables.environment(manifest, energy_sentences.sentence(found)),
        endings=text_tables.endings(cells),
        timed=not found.timeline.empty,
        traced=bool(found.traces),
        projected=projected,
        first=FIRST,
        licence=vega.LICENCE,
        style=Markup(stylesheet() + _read("page.css")),  # noqa: S704
        data=Markup(page_data.encode(page_data.build(found, manifest))),  # noqa: S704
        library=Markup(_inert(vega.library())),  # noqa: S704
        code=Markup("\n".join(map(_read, SCRIPTS))),  # noqa: S704
    )


def _fastest(summary: sentences.Summary) -> Fastest:
    block = summary.comparison
    by_name = {cell["implementation"]: cell for cell in block.ranked}
    # One arm alone leads nobody, but it has a time.
    first = next(iter([*summary.leaders, *by_name]), None)
    cell = by_name.get(first or "")
    claim = block.claims.get(first or "")
    ratio, interval = numbers.MISSING, ""
    if first and first == block.baseline:
        ratio, interval = "1", "the baseline"
    elif claim:
        ratio = numbers.ratio(claim.ratio.value)
        interval = (
            numbers.interval(claim.ratio.low, claim.ratio.high)
            if claim.ratio.low
            else "no interval"
        )
    return Fastest(
        place=block.place,
        leaders=summary.leaders,
        alone="" if summary.leaders else first or "",
        step=numbers.si(cell["step_s"], "s") if cell else numbers.MISSING,
        ratio=ratio,
        interval=interval,
        text=summary.short,
        floor=summary.floor,
    )


def _read(name: str) -> str:
    return (WEB / name).read_text("utf-8")


def _inert(script: str) -> str:
    """A script whose strings cannot end the element that it stands in."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _source(text: str) -> str:
    """How a Content-Security-Policy names an inline element by what is in it."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
