"""From ratios to verdicts (faster, slower, same or undecided), and when to stop measuring.

The 95 % interval of a ratio is about that ratio alone. A verdict is held to more: at most 1 %
(ALPHA) of all blocks may contain a wrong one, whichever of their arms are compared and however
often their samples were looked at. A block with k arms therefore splits ALPHA evenly over its
k (k - 1) / 2 pairs (Bonferroni) and over its looks: `AlphaSpending`. A regress run is held to more
still: ALPHA is for a wrong verdict anywhere in it, so it splits what a look at a block may spend
over the comparisons of the whole run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.records.rows import Look
from bench.records.statuses import MARGIN, VerdictWord

if TYPE_CHECKING:
    from bench.analyse.ratio_intervals import Ratio
    from bench.analyse.sample_rounds import Rounds
    from bench.records.rows import Manifest

ALPHA = 0.01

FIRST_LOOK = 16

RESERVE = 0.2
"""Share of ALPHA that is reserved for launches beyond the planned ones."""

_NOTHING = 1e-9 * ALPHA
"""Rounding error that sums of floats may leave of a spent share."""


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


def claims(
    rounds: Rounds,
    arms: Sequence[str],
    baseline: str,
    alpha: float,
    margin: float,
    beside: Mapping[str, str] | None = None,
) -> dict[str, Claim]:
    """Return the claims about a block's arms but the baseline.

    Args:
      rounds: of the block, in all launches.
      arms: all of the block's arms that are right, the baseline among them.
      baseline: what they are compared with.
      alpha: error of this look, over all pairs of arms and those in `beside`.
      margin: relative difference of step times that is too small to matter.
      beside: further arms, each compared with one opponent alone.
    """
    others = beside or {}
    opponents = {arm: baseline for arm in arms if arm != baseline} | dict(others)
    return compare(rounds, opponents, alpha / pairs(len(arms), len(others)), margin)


def compare(
    rounds: Rounds, opponents: Mapping[str, str], alpha: float, margin: float
) -> dict[str, Claim]:
    """Return the claim about each arm against its opponent, wherever both have samples.

    Args:
      rounds: of the block, in all launches.
      opponents: by arm.
      alpha: error of each comparison.
      margin: relative difference of step times that is too small to matter.
    """
    from bench.analyse.ratio_intervals import ratios  # noqa: PLC0415 (planning looks needs no scipy)

    return {arm: claim(r, alpha, margin) for arm, r in ratios(rounds, opponents).items()}


def claim(ratio: Ratio, alpha: float, margin: float) -> Claim:
    """Make a claim about a ratio, with an error of alpha."""
    verdict = decide(ratio, alpha, margin)
    needed = 0.0 if verdict.decided else launches_to_decide(ratio, alpha, margin)
    return Claim(ratio, verdict, needed)


def pairs(arms: int, beside: int = 0) -> int:
    """Count the comparisons between so many arms, and `beside` others; at least 1."""
    return max(1, arms * (arms - 1) // 2 + beside)


def launches_to_decide(ratio: Ratio, alpha: float, margin: float = MARGIN) -> float:
    """Estimate the factor on the launches so far that would decide an undecided ratio.

    The interval narrows with the root of the number of launches. It decides once its half-width is
    below the distance to what it must exclude: no difference, or the end of the margin, whichever
    is farther. This takes the estimated ratio for the truth; infinite where there is no interval.
    """
    effect, limit = abs(math.log(ratio.value)), math.log1p(margin)
    needed = max(effect, limit - effect)
    return (ratio.half_width(alpha) / needed) ** 2


def look_rounds(rounds: int) -> list[int]:
    """Return the rounds within a launch after which to look: 16, 32, 64 ... below `rounds`."""
    looks = []
    look = FIRST_LOOK
    while look < rounds:
        looks.append(look)
        look *= 2
    return looks


class AlphaSpending:
    """How much error each look at a block may spend, so that all looks together spend ALPHA.

    A spending function after Lan and DeMets, Biometrika 70 (1983): what all looks up to n rounds
    have spent depends on n alone, however many looks there were. Up to the planned rounds it grows
    in proportion to n, up to ALPHA less the reserve; the last planned look spends what is left of
    that. Of the reserve, looks beyond the N rounds of the plan have spent 1 - N / n: twice the
    rounds may spend half of it, so that more measuring keeps making verdicts easier. Looks are
    combined by Bonferroni's inequality instead of their joint distribution, which is conservative.

    Args:
      planned: rounds of all planned launches together.
      looks: those of earlier launches.
    """

    def __init__(self, planned: int, looks: Sequence[Look] = ()) -> None:
        self._planned = planned
        self._share = ALPHA * (1 - RESERVE)
        self.looks = list(looks)

    @property
    def spent(self) -> float:
        """Error that all looks so far have spent."""
        return sum(look["alpha"] for look in self.looks)

    def look(self, rounds: int, last_planned: bool) -> float:
        """Spend error on a look at the block's first `rounds` rounds.

        A look at as many rounds as the one before is the same look: it may spend more, if anything.
        A look at fewer spends nothing.

        Returns:
          The error that verdicts at this look may have together.
        """
        before = self.looks[-1]["rounds"] if self.looks else 0
        if rounds < before:
            return 0.0
        again = self.looks.pop()["alpha"] if self.looks and rounds == before else 0.0
        alpha = max(again, self._until(rounds, last_planned) - self.spent)
        self.looks.append(Look(rounds=rounds, alpha=alpha))
        return alpha

    def _until(self, rounds: int, last_planned: bool) -> float:
        """Return what all looks up to so many rounds may spend together."""
        planned = self._rounds_of_plan()
        if planned is not None and rounds > planned:
            return self._share + ALPHA * RESERVE * (1 - planned / rounds)
        return self._share * (1.0 if last_planned else min(rounds / self._planned, 1.0))

    def _rounds_of_plan(self) -> int | None:
        """Return the rounds at the look that spent the rest of the plan's share; None before it.

        They are fewer than planned if launches end early.
        """
        spent = 0.0
        for look in self.looks:
            spent += look["alpha"]
            if spent >= self._share - _NOTHING:
                return look["rounds"]
        return None
