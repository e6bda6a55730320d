"""The predicted curves in a run's folder, for the run's report."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import derived_files

PAGE = Path(derived_files.PROJECTION, "projection.html")
"""Path within a run's folder; `project` creates it."""

MOST = 8
"""Limit on the charts that a report shows; it links to the others."""


@dataclass(frozen=True)
class Projected:
    """The part of a projection that a report shows."""

    page: str
    """Path from the run's folder."""
    charts: list[dict[str, Any]]
    """`title`, `spec` in Vega-Lite, and `path`, where the image is within the run's folder."""
    more: int
    """Number of charts that are not shown."""


def find(run_dir: Path) -> Projected | None:
    """Return a run's projection, without damaged charts; None if its page is missing or damaged."""
    folder = run_dir / PAGE.parent
    damaged = {folder / name for name in derived_files.broken(folder)}
    if not (run_dir / PAGE).is_file() or damaged & {run_dir / PAGE, folder / derived_files.SEALS}:
        return None
    plots = [
        path
        for path in sorted((folder / "plots").glob("*.json"))
        if not damaged & {path, path.with_suffix(".svg")}
    ]
    charts = [
        json.loads(path.read_text("utf-8"))
        | {"path": path.with_suffix(".svg").relative_to(run_dir).as_posix()}
        for path in plots[:MOST]
    ]
    return Projected(PAGE.as_posix(), charts, len(plots) - len(charts))
