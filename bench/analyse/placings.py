"""How far every implementation is behind the fastest, in every block of a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison


@dataclass(frozen=True)
class Placing:
    """A cell compared with the fastest of its block."""

    cell: Mapping[str, Any]
    """Its row of `Tables.cells`."""
    behind: float = math.nan
    """Its time over that of the arm with the shortest estimate: at least 1, and exactly 1 for that
    arm. NaN without a time."""

    @property
    def fastest(self) -> bool:
        """Whether it has the shortest estimated time and is a leader."""
        return self.leads and self.behind == 1

    @property
    def leads(self) -> bool:
        """Whether it may be the fastest: see bench.analyse.standings."""
        return bool(self.cell["tier"] == 0)

    @property
    def approximate(self) -> bool:
        """Whether its step is approximate. `behind` may then be below 1."""
        return bool(self.cell["approximate"])

    @property
    def ranked(self) -> bool:
        """Whether it shared rounds with others, so that its rank has an interval."""
        return not math.isnan(self.cell["tier"])


@dataclass(frozen=True)
class Row:
    """One implementation in all blocks."""

    implementation: str
    places: dict[str, Placing]
    """By block name."""

    @property
    def known(self) -> list[float]:
        """Its times over the fastest's, wherever it is ranked, or has rounds and is approximate."""
        places = self.places.values()
        return [
            place.behind for place in places
            if place.ranked or (place.approximate and place.cell["paired"] and place.behind > 0)
        ]  # fmt: skip

    @property
    def approximate(self) -> bool:
        """Whether its step is approximate."""
        return any(place.approximate for place in self.places.values())

    @property
    def worst(self) -> float:
        """The largest value of `known`; NaN without any."""
        return max(self.known, default=math.nan)

    @property
    def mean(self) -> float:
        """The geometric mean of `known`; NaN without any."""
        known = self.known
        return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else math.nan


def find(found: Tables) -> tuple[list[Comparison], list[Row]]:
    """Return the blocks of a run in which arms were compared, and the implementations there.

    Rows are sorted by worst case, smallest first; those that are ranked nowhere come last,
    approximate ones after the others. An implementation that no block supports has no row.
    """
    blocks = [block for block in found.comparisons if len(block.standings.behind) > 1]
    fastest = {
        block.name: next(c["ratio"] for c in block.ranked if not math.isnan(c["tier"]))
        for block in blocks
    }
    rows: dict[str, Row] = {}
    for cell in found.rows:
        block, name = cell["block"], cell["implementation"]
        if block in fastest and cell["status"] != "unsupported":
            placing = Placing(cell, cell["ratio"] / fastest[block])
            rows.setdefault(name, Row(name, {})).places[block] = placing
    order = sorted(rows.values(), key=lambda r: (r.approximate, not r.known, r.worst, r.mean))
    return blocks, order
