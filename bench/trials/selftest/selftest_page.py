"""A self-test's figures as a page, as Markdown and as one JSON file. Imports no jax."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment
from markupsafe import Markup

from bench.present.rendering import environment
from bench.records import files
from bench.records.trial_results import SELFTEST_FIGURES
from bench.trials.selftest import (
    detector_figures as figures,
)
from bench.trials.selftest import (
    detector_plot as plot,
)
from bench.trials.selftest import (
    selftest_session as session,
)
from bench.trials.selftest.detector_figures import Detector, Figures, Rate

if TYPE_CHECKING:
    from bench.present.plots.style import Plot
    from bench.trials.selftest.selftest_session import Manifest


@dataclass(frozen=True)
class Page:
    """What both pages show."""

    title: str
    manifest: Manifest
    figures: Figures
    planted: list[str]
    started: str
    plot: Plot | None

    @property
    def commit(self) -> str:
        """Of the checkout that measured."""
        git = self.manifest["git"]
        return f"{git['commit'] or 'unknown'}{' with uncommitted changes' if git['dirty'] else ''}"

    def detector_rows(self, base_only: bool) -> list[Detector]:
        """Of all tools over all loads, or each load's."""
        return [d for d in self.figures.detectors if (d.pattern == figures.ALL) == base_only]

    @property
    def svg(self) -> Markup:
        """The plot, for the page."""
        label = "How often each tool is right; the table below holds its numbers"
        return Markup(self.plot.inline(label) if self.plot else "")  # noqa: S704 (escapes itself)


def build(folder: Path) -> tuple[Path, Figures]:
    """Write `figures.json`, the plot, `report.md` and `report.html` into a self-test's folder.

    Reads stored rows alone.

    Returns:
      The page, and the figures on it.

    Raises:
      DamagedError: a stored file is not as it was stored.
      FileNotFoundError: it is not a self-test's folder.
    """
    manifest, rows = session.read(folder)
    seconds = float(manifest["settings"]["seconds"])
    found = figures.compute(rows, seconds)
    planted = list(dict.fromkeys(name for d in found.detectors for name in d.found))
    drawn = plot.detectors(found.detectors, seconds, planted)
    started = f"{datetime.fromisoformat(manifest['started_at']):%Y-%m-%d %H:%M} UTC"
    page = Page(folder.name, manifest, found, planted, started, drawn)
    files.write(folder / SELFTEST_FIGURES, json.dumps(asdict(found), indent=2) + "\n")
    if drawn is not None:
        drawn.write(folder)
    markdown = _environment(markdown=True).get_template("selftest.md.j2")
    files.write(folder / "report.md", markdown.render(page=page))
    path = folder / "report.html"
    html = _environment(markdown=False).get_template("selftest.html.j2")
    files.write(path, html.render(page=page))
    return path, found


def _environment(*, markdown: bool) -> Environment:
    made = environment(Path(__file__).parent, markdown=markdown)
    made.filters |= {"rate": rate, "percent": percent}
    return made


def rate(share: Rate | None) -> str:
    """`1.4 % (0.6 to 3.5)`, with Wilson's 95 % interval; a dash where nobody was asked."""
    if share is None or not share.of:
        return "\N{EN DASH}"
    low, high = share.interval
    return f"{100 * share.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def percent(share: float) -> str:
    """`1.23 %`."""
    return f"{100 * share:.2f} %"
