"""Histories of cells: measurements of the same cell by several runs on the same hardware.

Step times of different runs also differ by what the host did in between (see `between_runs` in
bench.analyse.ratio_intervals). A history therefore follows the ratio to a baseline that took turns
with the cell. If the baseline itself becomes slower, the ratios of all others fall.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import special

from bench.analyse import change_points
from bench.analyse.cell_table import Tables
from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import UNPAIRED_FREEDOM, UNPAIRED_SD, Ratio, ratios
from bench.analyse.run_changes import Difference, differences, hardware, other_files
from bench.records.cells import Block
from bench.records.grouping import grouped
from bench.records.store import Run

RESOLVED = math.exp(special.stdtrit(UNPAIRED_FREEDOM, 0.975) * math.sqrt(2) * UNPAIRED_SD)
"""Largest ratio of two runs' step times that the host may explain, at 95 %."""


@dataclass(frozen=True)
class CellMeasurement:
    """The measurement of a cell in one run."""

    run: Run
    step_s: float
    ratio: Ratio | None
    """To the history's baseline; None for the baseline itself, and if the two shared no round."""


@dataclass(frozen=True)
class Change:
    """A change point of the ratios."""

    place: int
    """Index in `History.rated` of the first measurement after it."""
    factor: float
    """Median ratio from there to the next change, over the median since the previous one."""
    differences: list[Difference]
    """All recorded properties that differ from the run before."""
    files: list[str]
    """`implementation pmap`, `workload mlp`: those of both whose files differ."""


@dataclass(frozen=True)
class History:
    """A cell on one kind of hardware."""

    block: Block
    implementation: str
    baseline: str
    """The baseline of the block's newest run."""
    visits: list[CellMeasurement]
    """Oldest first, at least two."""

    @property
    def rated(self) -> list[tuple[CellMeasurement, Ratio]]:
        """The measurements that have a ratio."""
        return [(visit, visit.ratio) for visit in self.visits if visit.ratio]

    @cached_property
    def changes(self) -> list[Change]:
        """The change points, oldest first."""
        logs = [math.log(ratio.value) for _, ratio in self.rated]
        starts = change_points.find(logs)
        levels = [statistics.median(part) for part in np.split(logs, starts)] if starts else []
        return [
            Change(start, math.exp(after - before), *self._differences(start))
            for start, (before, after) in zip(starts, pairwise(levels), strict=True)
        ]

    def _differences(self, start: int) -> tuple[list[Difference], list[str]]:
        """Return what differs between the measurement `start` of `rated` and the one before."""
        old, new = self.rated[start - 1][0].run, self.rated[start][0].run
        changed = differences(old.manifest, new.manifest)
        own = {f"implementation {self.implementation}", f"workload {self.block.workload}"}
        files = [name for name in other_files(old, new) if name in own]
        return [one for one in changed if one.kind != "options"], files


def find(runs: Iterable[tuple[Run, Tables]]) -> list[History]:
    """Return the histories of cells that two or more runs, in any order, timed on like hardware."""
    by_time = sorted(runs, key=lambda one: datetime.fromisoformat(one[0].manifest["started_at"]))
    blocks = grouped(
        ((*hardware(run.manifest).items(), block.name), (run, block))
        for run, found in by_time
        for block in found.comparisons
        if block.ranked
    )
    return [history for own in blocks.values() for history in _of_block(own)]


def _of_block(runs: Sequence[tuple[Run, Comparison]]) -> Iterator[History]:
    newest = runs[-1][1]
    visits = grouped(
        (arm, CellMeasurement(run, cell["step_s"], _ratio(block, arm, newest.baseline)))
        for run, block in reversed(runs)
        for cell in block.ranked
        for arm in [cell["implementation"]]
    )
    for arm, own in visits.items():
        if len(own) > 1:
            yield History(newest.block, arm, newest.baseline, own[::-1])


def _ratio(block: Comparison, arm: str, baseline: str) -> Ratio | None:
    if arm == baseline:
        return None
    found = ratios(block.rounds, {arm: baseline}, block.process).get(arm)
    return found if found and found.paired else None
