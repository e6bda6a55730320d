"""How far every implementation is behind the fastest, in every block of a run."""

import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison


@dataclass(frozen=True)
class Row:
    """One implementation in all blocks."""

    implementation: str
    cells: dict[str, dict[str, Any]]
    """By block name, its row of `Tables.cells`, with `behind`: its time over that of the arm with
    the shortest estimate. At least 1 except for approximate steps, and exactly 1 for that arm; NaN
    without a time."""

    @cached_property
    def known(self) -> list[float]:
        """Its times over the fastest's, wherever it is ranked, or has rounds and is approximate."""
        return [
            cell["behind"] for cell in self.cells.values()
            if not math.isnan(cell["tier"])
            or (cell["approximate"] and cell["paired"] and cell["behind"] > 0)
        ]  # fmt: skip

    @cached_property
    def approximate(self) -> bool:
        """Whether its step is approximate."""
        return any(cell["approximate"] for cell in self.cells.values())

    @cached_property
    def worst(self) -> float:
        """The largest value of `known`; NaN without any."""
        return max(self.known, default=math.nan)

    @cached_property
    def mean(self) -> float:
        """The geometric mean of `known`; NaN without any."""
        return statistics.geometric_mean(self.known) if self.known else math.nan


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
            behind = cell["ratio"] / fastest[block]
            rows.setdefault(name, Row(name, {})).cells[block] = cell | {"behind": behind}
    order = sorted(rows.values(), key=lambda r: (r.approximate, not r.known, r.worst, r.mean))
    return blocks, order
