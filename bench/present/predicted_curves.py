"""Predicted curves that lie in a run's folder, for its report."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

PAGE = Path("projection", "projection.html")
"""In the folder of a run, once `project` has made it."""

MOST = 8
"""Charts that a report shows; its link leads to all."""


@dataclass(frozen=True)
class Chart:
    """A chart of predicted curves, measured ones beside them."""

    label: str
    path: str
    """From the run's folder."""
    source: str
    """The image itself, as a data URL."""


@dataclass(frozen=True)
class Projected:
    """What a report shows of a projection."""

    page: str
    """Path from the run's folder."""
    charts: list[Chart]
    more: int
    """Charts that are not shown."""


def find(run_dir: Path) -> Projected | None:
    """What is there to be shown; None if the run has no projection."""
    if not (run_dir / PAGE).is_file():
        return None
    plots = sorted((run_dir / PAGE.parent / "plots").glob("*.svg"))
    charts = [
        Chart(
            label=f"Predicted: {path.stem.replace('-', ' ')}",
            path=path.relative_to(run_dir).as_posix(),
            source="data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode(),
        )
        for path in plots[:MOST]
    ]
    return Projected(PAGE.as_posix(), charts, len(plots) - len(charts))
