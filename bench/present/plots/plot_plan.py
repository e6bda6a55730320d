"""The input of a kind of plot, and the plots that it offers to draw."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from bench.analyse.comparisons import Comparison
from bench.analyse.scaling_curves import Scaling
from bench.present import charts
from bench.present.columns import Table, missing
from bench.records.trace_rows import TraceRow

LINES = 120
"""Limit on the lines of a plot over its panels: more would be unreadable on a page."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Subject:
    """A workload at one size with one set of options: the data of its plots."""

    slug: str
    blocks: list[Comparison]
    cells: pd.DataFrame
    """The rows of these blocks in the tidy table."""
    curves: list[Scaling]
    traces: Mapping[str, TraceRow]
    implementations: list[str]
    """All implementations of the run, in order: they determine colours and marks."""
    panels: int
    """Limit on the panels of a plot."""
    machine: str = ""

    @property
    def subtitle(self) -> str:
        """The text that makes a figure understandable outside of the report."""
        baselines = ", ".join(dict.fromkeys(b.baseline for b in self.blocks if b.baseline))
        parts = [self.blocks[0].subject, f"baseline {baselines}" if baselines else "", self.machine]
        return " \N{MIDDLE DOT} ".join(filter(None, parts))

    def looks(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the looks of these implementations: see `charts.looks`."""
        return charts.looks(names, self.implementations)

    def some(self, items: Sequence[Item], what: str, lines: int = 1) -> tuple[list[Item], str]:
        """Return as many items as a plot has room for panels, each with `lines`: see `some`."""
        return some(items, max(1, min(self.panels, LINES // lines)), what)


class Drawing(NamedTuple):
    """The contents of a plot."""

    spec: Mapping[str, Any]
    """In Vega-Lite."""
    note: str
    table: Table | None = None
    """The figures behind it; None where the report's other tables contain them."""


@dataclass(frozen=True)
class Plan:
    """A plot that could be drawn."""

    panels: int
    """Number of panels, the measure of drawing time."""
    make: Callable[[], Drawing]
    """Returns its contents; called only if there is room for it."""
    later: bool = False
    """Whether all other plots of the subject come first."""
    title: str = ""
    """Its title, and its file name, where a subject has several plots of the kind."""
    slug: str = ""


def row_of(block: Comparison, cell: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a row of a kind of chart about a cell, like `rowOf` in web/chart_groups.js."""
    return {
        "name": cell["implementation"],
        "place": block.place,
        "isBaseline": cell["implementation"] == block.baseline,
        **{key: None if missing(cell[key]) else cell[key] for key in charts.CHARTS[kind].row},
    }


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
