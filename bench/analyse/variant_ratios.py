"""Blocks in another environment, or in several processes, against the same blocks otherwise.

They are not measured side by side, as they are processes of their own. But launches of all blocks
take turns in random order, so that their means may be compared: `ratio_intervals.apart`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.analyse.ratio_intervals import apart
from bench.analyse.verdicts import ALPHA, Verdict, decide
from bench.records.cells import StepOptions

if TYPE_CHECKING:
    from bench.analyse.cell_table import Comparison
    from bench.analyse.ratio_intervals import Ratio


@dataclass(frozen=True)
class Effect:
    """What a variant does to one cell, or that its mesh is spread over several processes."""

    block: Comparison
    implementation: str
    ratio: Ratio
    """Step time over that in the usual environment, or in one process."""
    verdict: Verdict


def find(comparisons: Sequence[Comparison]) -> list[Effect]:
    """Every cell that has a time in a variant or in several processes, and one without that.

    At most ALPHA of runs contain a wrong verdict among them.
    """
    found = list(_ratios(comparisons))
    alpha = ALPHA / max(1, len(found))
    return [
        Effect(block, arm, ratio, decide(ratio, alpha, block.margin)) for block, arm, ratio in found
    ]


def _ratios(comparisons: Sequence[Comparison]) -> Iterator[tuple[Comparison, str, Ratio]]:
    blocks = {_key(block, block.options): block for block in comparisons}
    for block in comparisons:
        options = StepOptions.parse(block.options)
        usual = blocks.get(_key(block, str(_usual(options))))
        if usual is None or usual is block:
            continue
        for arm in block.arms:
            if arm in usual.arms:
                series = (one.rounds.log_seconds(arm) for one in (block, usual))
                ratio = apart(*series)
                if ratio is not None:
                    yield block, arm, ratio


def _usual(options: StepOptions) -> StepOptions:
    if options.variant:
        return replace(options, variant="")
    return replace(options, processes=1)


def _key(block: Comparison, options: str) -> tuple[str, ...]:
    return block.workload, block.size, block.mesh, str(block.batch), options
