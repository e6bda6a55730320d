"""The predicted curves in a run's folder, for the run's report."""

import html
import re
from dataclasses import dataclass
from pathlib import Path

from bench.present.rendering import image
from bench.records import derived_files

PAGE = Path(derived_files.PROJECTION, "projection.html")
"""Path within a run's folder; `project` creates it."""

MOST = 8
"""Charts that a report shows; it links to the others."""


@dataclass(frozen=True)
class Chart:
    """A chart of predicted and measured curves."""

    label: str
    path: str
    """Path from the run's folder."""
    source: str
    """The image as a data URL."""


@dataclass(frozen=True)
class Projected:
    """The part of a projection that a report shows."""

    page: str
    """Path from the run's folder."""
    charts: list[Chart]
    more: int
    """Number of charts that are not shown."""


def find(run_dir: Path) -> Projected | None:
    """Return a run's projection, without damaged charts; None if its page is missing or damaged."""
    folder = run_dir / PAGE.parent
    damaged = {folder / one.place for one in derived_files.broken(folder)}
    if not (run_dir / PAGE).is_file() or damaged & {run_dir / PAGE, folder / derived_files.SEALS}:
        return None
    plots = [path for path in sorted((folder / "plots").glob("*.svg")) if path not in damaged]
    charts = [
        Chart(
            label=f"Predicted: {_title(path)}",
            path=path.relative_to(run_dir).as_posix(),
            source=image(path.read_text("utf-8")),
        )
        for path in plots[:MOST]
    ]
    return Projected(PAGE.as_posix(), charts, len(plots) - len(charts))


def _title(plot: Path) -> str:
    """Return the title in an SVG, or else the words of its file name."""
    found = re.search(r"<title>(.*?)</title>", plot.read_text("utf-8"))
    return html.unescape(found[1]) if found else plot.stem.replace("-", " ")
