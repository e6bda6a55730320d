"""Blocks in another environment, or in several processes, against the same blocks otherwise.

They are processes of their own, and so are not measured side by side. But launches of all blocks
take turns in random order, so their means may be compared: `ratio_intervals.apart`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import Ratio, apart
from bench.analyse.verdicts import ALPHA, Verdict, decide


@dataclass(frozen=True)
class Effect:
    """The effect on one cell of a variant, or of spreading its mesh over several processes."""

    block: Comparison
    implementation: str
    ratio: Ratio
    """Step time over that in the usual environment, or in one process."""
    verdict: Verdict


def find(comparisons: Sequence[Comparison]) -> list[Effect]:
    """List every cell that has a time in a variant or in several processes, and one without that.

    At most ALPHA of runs contain a wrong verdict among them.
    """
    found = list(_ratios(comparisons))
    alpha = ALPHA / max(1, len(found))
    return [
        Effect(block, arm, ratio, decide(ratio, alpha, block.margin)) for block, arm, ratio in found
    ]


def _ratios(comparisons: Sequence[Comparison]) -> Iterator[tuple[Comparison, str, Ratio]]:
    blocks = {comparison.block: comparison for comparison in comparisons}
    for block, comparison in blocks.items():
        options = block.options
        other = replace(options, variant="") if options.variant else replace(options, processes=1)
        usual = blocks.get(replace(block, options=other))
        if usual is None or usual is comparison:
            continue
        for arm in comparison.arms:
            if arm in usual.arms:
                ratio = apart(*(one.rounds.log_seconds(arm) for one in (comparison, usual)))
                if ratio is not None:
                    yield comparison, arm, ratio
