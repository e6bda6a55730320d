"""Verdicts on ratios: faster, slower, same or undecided.

They are stricter than a ratio's 95 % interval: at most ALPHA of all blocks may contain a wrong
verdict on an arm against the baseline, however often their samples were looked at. Each look has a
share of that error (see bench.analyse.alpha_spending), which is divided evenly among a block's
comparisons, or all of a gate's (Bonferroni's inequality); see docs/design/verdicts.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.records.statuses import MARGIN, VerdictWord

if TYPE_CHECKING:
    from bench.analyse.ratio_intervals import Ratio
    from bench.records.rows import Manifest

ALPHA = 0.01


@dataclass(frozen=True)
class Verdict:
    """A verdict on a ratio, and the interval that supports it."""

    word: VerdictWord
    low: float
    high: float
    """Interval of the ratio that supports the word, wider than its 95 % interval. 0 and infinity
    where there is none."""
    proved: bool = False
    """Whether it is *same* because the programs are proved to be equal, regardless of times."""

    @property
    def decided(self) -> bool:
        """Whether the word is anything but undecided."""
        return self.word != "undecided"


def margin_of(manifest: Manifest) -> float:
    """Return the margin of a run: the relative difference of step times that is negligible."""
    return float(manifest["config"].get("margin", MARGIN))


def decide(ratio: Ratio, alpha: float, margin: float = MARGIN) -> Verdict:
    """Decide by comparing a ratio's interval of error alpha with 1 and with the margin.

    *same*: the interval lies within 1 / (1 + margin) .. 1 + margin, so any difference is
    negligible. Otherwise, *faster* (*slower*): the interval lies entirely below (above) 1.
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
    """A verdict on one arm of a block against another, by default the baseline."""

    ratio: Ratio
    verdict: Verdict
    to_decide: float
    """Factor on the launches so far that would probably decide it: see `launches_to_decide`."""


def same(programs: Mapping[str, str], arm: str, other: str) -> bool:
    """Return whether two arms are proved to run the same program, given the known identities."""
    return bool(programs.get(arm)) and programs[arm] == programs.get(other)


def claim(ratio: Ratio, alpha: float, margin: float, *, same: bool = False) -> Claim:
    """Make a claim about a ratio with error alpha; if `same`, it is 1, whatever the times."""
    verdict = decide(ratio, alpha, margin)
    if same:  # the verdict keeps the interval of the times, which may contradict that
        ratio = replace(ratio, value=1.0, error=0.0, freedom=1.0, differences=None)
        verdict = replace(verdict, word="same", proved=True)
    needed = 0.0 if verdict.decided else launches_to_decide(ratio, verdict, margin)
    return Claim(ratio, verdict, needed)


def launches_to_decide(ratio: Ratio, verdict: Verdict, margin: float = MARGIN) -> float:
    """Estimate how many times the launches so far would decide an undecided ratio.

    The interval narrows with the square root of the number of launches, and decides once its
    half-width is below the distance to what it must exclude: 1 or the end of the margin, whichever
    is farther. The estimated ratio is taken as true. Infinite if that does not decide it.
    """
    effect, limit = abs(math.log(ratio.value)), math.log1p(margin)
    needed = max(effect, limit - effect)
    half_width = math.log(verdict.high / verdict.low) / 2 if verdict.low > 0 else math.inf
    return (half_width / needed) ** 2 if needed else math.inf
