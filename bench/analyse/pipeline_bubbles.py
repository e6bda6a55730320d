"""The share of a pipeline's step that is not spent on microbatches, as measured.

A step of M microbatches takes M a + b: a for each, and b for filling and draining the pipeline (the
bubble) and for what is done once a step (reducing gradients, the update). Two cells that differ in
the number of microbatches alone, and not in a microbatch's size, give a; b is the rest.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import apart


def measure(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], dict[str, float]]:
    """Return b as a share of the step, by block and implementation.

    As columns of a cell: `idle`, with the ends of its 95 % interval, `idle_low` and `idle_high`,
    which are NaN where there is no interval. Left out without a block of more microbatches of the
    same size.
    """
    alike: defaultdict[object, dict[int, Comparison]] = defaultdict(dict)
    for comparison in comparisons:
        block, count = comparison.block, comparison.block.options.microbatches
        one = replace(block.options, microbatches=1)
        alike[block.workload, block.size, block.mesh, block.batch / count, one][count] = comparison
    shares = {}
    for blocks in alike.values():
        many = max(blocks)
        for few, comparison in blocks.items():
            for arm in set(comparison.arms) & set(blocks[many].arms) if few < many else ():
                ratio = apart(*(blocks[count].rounds.log_seconds(arm) for count in (many, few)))
                if ratio is not None:
                    ends = {"idle": ratio.value, "idle_low": ratio.high, "idle_high": ratio.low}
                    shares[comparison.name, arm] = {
                        name: 1 - (end - 1) * few / (many - few) if end else math.nan
                        for name, end in ends.items()
                    }
    return shares
