"""The measured share of a pipeline's step that is not spent on microbatches.

A step of M microbatches takes M a + b: a for each microbatch, and b for filling and draining the
pipeline (the bubble) and for work done once per step (gradient reduction, the update). Two cells
that differ only in the number of microbatches, not in a microbatch's size, determine a and b.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from bench.analyse.comparisons import Comparison
from bench.analyse.ratio_intervals import apart


def measure(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], dict[str, float]]:
    """Return b as a share of the step, by block and implementation.

    The values are columns of a cell: `idle`, with its 95 % interval `idle_low`, `idle_high`, NaN
    where there is none. Blocks are left out unless another one has more microbatches of the same
    size.
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
