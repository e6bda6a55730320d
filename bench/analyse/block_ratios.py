"""Ratios between blocks of one run: the effect of an option, and the bubble of a pipeline.

Arms under another version share rounds with those under the present one. Any other option makes a
separate block, which is not measured side by side. But launches of all blocks are interleaved in
random order, so their means may be compared: `ratio_intervals.between_blocks`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.analyse.comparisons import Comparison, Row
from bench.analyse.ratio_intervals import Ratio, between_blocks
from bench.analyse.verdicts import ALPHA, Verdict, decide

USUAL: dict[str, Any] = {"variant": "", "processes": 1, "remat": "", "scan_layers": False}
"""Options whose effect is estimated, one at a time, and their default values."""


@dataclass(frozen=True)
class Effect:
    """The effect of one option on a cell: an option of USUAL, or another version."""

    block: Comparison
    option: str
    """As in a cell's name, such as `remat=dots`; or `version=NAME`, whose blocks are the same."""
    implementation: str
    cell: Row
    """The row of `Tables.cells` with the option."""
    usual_cell: Row
    """The one without it."""
    ratio: Ratio
    """Step time over that without the option."""
    verdict: Verdict


def option_effects(comparisons: Sequence[Comparison]) -> list[Effect]:
    """Return the effect of each option on every cell that has a time with and without it.

    At most ALPHA of runs contain a wrong verdict between separate blocks; verdicts on versions
    share the error of their block's comparisons.
    """
    rows = {c.name: {cell["implementation"]: cell for cell in c.ranked} for c in comparisons}
    versions = [
        Effect(
            block, f"version={name}", implementation,
            rows[block.name][arm], rows[block.name][implementation], one.ratio, one.verdict,
        )
        for block in comparisons
        for arm, one in block.version_claims.items()
        for implementation, _, name in [arm.partition("@")]
    ]  # fmt: skip
    found = list(_ratios(comparisons))
    alpha = ALPHA / max(1, len(found))
    return versions + [
        Effect(
            block, option, arm, rows[block.name][arm], rows[usual.name][arm],
            ratio, decide(ratio, alpha, block.margin),
        )
        for block, usual, option, arm, ratio in found
    ]  # fmt: skip


def _ratios(
    comparisons: Sequence[Comparison],
) -> Iterator[tuple[Comparison, Comparison, str, str, Ratio]]:
    blocks = {comparison.block: comparison for comparison in comparisons}
    for block, comparison in blocks.items():
        for name, value in USUAL.items():
            other = replace(block.options, **{name: value})
            usual = blocks.get(replace(block, options=other))
            if usual is None or usual is comparison:
                continue
            (option,) = set(str(block.options).split(",")) - set(str(other).split(","))
            for arm in comparison.arms:
                if arm in usual.arms and (ratio := _apart(comparison, usual, arm)):
                    yield comparison, usual, option, arm, ratio


def _apart(one: Comparison, other: Comparison, arm: str) -> Ratio | None:
    return between_blocks(*(block.rounds.log_seconds(arm) for block in (one, other)))


def idle_shares(comparisons: Sequence[Comparison]) -> dict[tuple[str, str], dict[str, float]]:
    """Return the share of a pipeline's step that is not spent on microbatches.

    A step of M microbatches takes M a + b: a for each microbatch, and b for filling and draining
    the pipeline (the bubble) and for work done once per step (gradient reduction, the update). Two
    cells that differ only in the number of microbatches, not in a microbatch's size, determine a
    and b.

    The result has, by block and implementation, columns of the cell: `idle`, which is b over the
    step, with its 95 % interval `idle_low`, `idle_high`, NaN where there is none. Blocks are left
    out unless another one has more microbatches of the same size.
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
                if ratio := _apart(blocks[many], comparison, arm):
                    ends = {"idle": ratio.value, "idle_low": ratio.high, "idle_high": ratio.low}
                    shares[comparison.name, arm] = {
                        name: 1 - (end - 1) * few / (many - few) if end else math.nan
                        for name, end in ends.items()
                    }
    return shares
