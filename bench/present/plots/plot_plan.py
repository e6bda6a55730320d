"""The data of a subject's plots, and the plots that could be drawn."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.scaling_curves import Scaling
from bench.present.columns import Table
from bench.records.trace_rows import TraceRow

Item = TypeVar("Item")


@dataclass(frozen=True)
class Subject:
    """A workload at one size with one set of options: the data of its plots."""

    blocks: list[Comparison]
    cells: pd.DataFrame
    """The rows of these blocks in the tidy table."""
    curves: list[Scaling]
    traces: Mapping[str, TraceRow]
    implementations: list[str]
    """All implementations of the run, in order: they determine colours and marks."""
    panels: int
    """Limit on the panels of a plot."""

    @classmethod
    def of(cls, found: Tables, blocks: list[Comparison], panels: int) -> Self:
        """Return the data of a subject, which has these blocks."""
        return cls(
            blocks=blocks,
            cells=found.cells[found.cells["block"].isin([block.name for block in blocks])],
            curves=[curve for curve in found.curves if curve.subject == blocks[0].subject],
            traces=found.traces,
            implementations=sorted(found.cells["implementation"].unique()),
            panels=panels,
        )


@dataclass(frozen=True)
class Plan:
    """A plot that could be drawn."""

    panels: int
    """Number of panels, the measure of drawing time."""
    spec: Callable[[], Mapping[str, Any]]
    """Returns it in Vega-Lite; many plans are never drawn."""
    note: str
    table: Table | None = None
    """The figures behind it; None where the report's other tables contain them."""
    title: str = ""
    """Its title, and its file name, where a subject has several plots of the kind."""
    slug: str = ""
    later: bool = False
    """Whether all other plots of the subject come first."""


def sample(items: Sequence[Item], most: float) -> list[Item]:
    """Return at most this many items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    places = np.linspace(0, len(items) - 1, max(1, math.floor(most))).round().astype(int)
    return [items[place] for place in places]


def some(items: Sequence[Item], most: int, what: str) -> tuple[list[Item], str]:
    """Return at most this many items, evenly spaced, and a sentence if these are not all."""
    chosen = sample(items, most)
    if len(chosen) == len(items):
        return chosen, ""
    return chosen, f" The plot shows {len(chosen)} of {len(items)} {what}."
