"""What of a pipeline's step is not spent on microbatches, as measured.

A step of M microbatches takes M a + b: a for each, and b for filling and draining the pipeline (the
bubble) and for what is done once a step (reducing gradients, the update). Two cells that differ in
the number of microbatches alone, and not in a microbatch's size, give a; b is the rest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.analyse.ratio_intervals import apart
from bench.records.cells import StepOptions

if TYPE_CHECKING:
    from bench.analyse.cell_table import Comparison


@dataclass(frozen=True)
class Idle:
    """B as a share of the step, with its 95 % interval."""

    value: float
    low: float
    high: float
    """The ends are NaN where there is no interval."""


def measure(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], Idle]:
    """By block and implementation, wherever there is a block of more microbatches of that size."""
    alike: defaultdict[object, dict[int, Comparison]] = defaultdict(dict)
    for block in comparisons:
        options = StepOptions.parse(block.options)
        count = options.microbatches
        rest = replace(options, microbatches=1)
        key = block.workload, block.size, block.mesh, block.batch / count, rest
        alike[key][count] = block
    return {
        (block.name, arm): idle
        for blocks in alike.values()
        for few, block in blocks.items()
        for arm in block.arms
        if few < max(blocks) and (idle := _idle(arm, few, max(blocks), blocks)) is not None
    }


def _idle(arm: str, few: int, many: int, blocks: dict[int, Comparison]) -> Idle | None:
    if arm not in blocks[many].arms:
        return None
    ratio = apart(*(blocks[count].rounds.log_seconds(arm) for count in (many, few)))
    if ratio is None:
        return None
    value, low, high = (
        1 - (end - 1) * few / (many - few) if end else math.nan
        for end in (ratio.value, ratio.high, ratio.low)
    )
    return Idle(value, low, high)
