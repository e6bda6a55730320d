"""From ratios to verdicts: faster, slower, same or undecided.

The 95 % interval of a ratio is about that ratio alone. A verdict is held to more: at most 1 %
(ALPHA) of all blocks may contain a wrong one about an arm and the baseline, however often their
samples were looked at. A block therefore splits what each look may spend (see
bench.analyse.alpha_spending) evenly over its comparisons, by Bonferroni's inequality. Comparisons
of all pairs of arms, on demand, split it over the pairs. A regress run is held to more still: ALPHA
is for a wrong verdict anywhere in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.records.statuses import MARGIN, VerdictWord

if TYPE_CHECKING:
    from bench.analyse.process_spread import ProcessSpread
    from bench.analyse.ratio_intervals import Ratio
    from bench.analyse.sample_rounds import Rounds
    from bench.records.rows import Manifest

ALPHA = 0.01


@dataclass(frozen=True)
class Verdict:
    """What may be said about a ratio."""

    word: VerdictWord
    low: float
    high: float
    """Interval of the ratio that the word rests on: stricter than its 95 % interval. 0 and
    infinity where there is none."""

    @property
    def decided(self) -> bool:
        """Whether anything can be said."""
        return self.word != "undecided"


def margin_of(manifest: Manifest) -> float:
    """Return the relative difference of step times that is too small to matter in a run."""
    return float(manifest["config"].get("margin", MARGIN))


def decide(ratio: Ratio, alpha: float, margin: float = MARGIN) -> Verdict:
    """Hold a ratio's interval, of error alpha, against no difference and the margin.

    *same*: the interval lies within 1 / (1 + margin) .. 1 + margin, so that whatever difference
    there is does not matter. Otherwise *faster* (*slower*): it lies below (above) 1.
    """
    low, high = ratio.interval(alpha) or (0.0, math.inf)
    word: VerdictWord = "undecided"
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        word = "same"
    elif high < 1:
        word = "faster"
    elif low > 1:
        word = "slower"
    return Verdict(word, low, high)


@dataclass(frozen=True)
class Claim:
    """A block's claim about one of its arms against another, by default its baseline."""

    ratio: Ratio
    verdict: Verdict
    to_decide: float
    """Factor on the launches so far that would probably decide it: `launches_to_decide`."""


def compare(
    rounds: Rounds,
    opponents: Mapping[str, str],
    alpha: float,
    margin: float,
    process: ProcessSpread | None = None,
) -> dict[str, Claim]:
    """Return the claim about each arm against its opponent, wherever both have samples.

    Args:
      rounds: of the block, in all launches.
      opponents: by arm.
      alpha: error of each comparison.
      margin: relative difference of step times that is too small to matter.
      process: how much processes differ; what is assumed of it if None.
    """
    # Planning a run needs no scipy.
    from bench.analyse.process_spread import PROCESS  # noqa: PLC0415
    from bench.analyse.ratio_intervals import ratios  # noqa: PLC0415

    found = ratios(rounds, opponents, process or PROCESS)
    return {arm: claim(ratio, alpha, margin) for arm, ratio in found.items()}


def claim(ratio: Ratio, alpha: float, margin: float) -> Claim:
    """Make a claim about a ratio, with an error of alpha."""
    verdict = decide(ratio, alpha, margin)
    needed = 0.0 if verdict.decided else launches_to_decide(ratio, alpha, margin)
    return Claim(ratio, verdict, needed)


def pairs(arms: int) -> int:
    """Count the pairs of so many arms; at least 1."""
    return max(1, arms * (arms - 1) // 2)


def launches_to_decide(ratio: Ratio, alpha: float, margin: float = MARGIN) -> float:
    """Estimate the factor on the launches so far that would decide an undecided ratio.

    The interval narrows with the root of the number of launches. It decides once its half-width is
    below the distance to what it must exclude: no difference, or the end of the margin, whichever
    is farther. This takes the estimated ratio for the truth; infinite where there is no interval.
    """
    effect, limit = abs(math.log(ratio.value)), math.log1p(margin)
    needed = max(effect, limit - effect)
    return (ratio.half_width(alpha) / needed) ** 2
