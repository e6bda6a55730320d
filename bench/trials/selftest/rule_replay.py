"""Replay of Lockstep's own rule on the samples of one block: its verdicts, and when it stops."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.analyse.alpha_spending import AlphaSpending
from bench.analyse.sample_rounds import Rounds
from bench.analyse.verdicts import Claim, compare
from bench.records.messages import is_look
from bench.records.statuses import MARGIN


@dataclass(frozen=True)
class Outcome:
    """The claims about a block's arms against its baseline."""

    rounds: int
    """Rounds after which the engine would have stopped."""
    shown: dict[str, Claim]
    """Claims from these rounds."""
    whole: dict[str, Claim]
    """Claims from all rounds, at the last planned look, as if nothing had been decided before."""

    def judge(self, arm: str, truth: float) -> dict[str, object]:
        """Compare the claim about one arm with the true ratio; see `equal_arms.trials`."""
        shown, whole = self.shown[arm], self.whole[arm]
        low, high = whole.verdict.low, whole.verdict.high
        return {
            "word": shown.verdict.word,
            "holds": _holds(shown, truth),
            "whole_holds": _holds(whole, truth),
            "width": whole.ratio.half_width(),
            "verdict_width": math.log(high / low) / 2 if low > 0 else math.inf,
        }


def _holds(claim: Claim, truth: float) -> bool | None:
    """Return whether the 95 % interval covers the truth; None where there is no interval yet."""
    ends = claim.ratio.interval()
    return None if ends is None else ends[0] <= truth <= ends[1]


def replay(rounds: Rounds, arms: Sequence[str], margin: float = MARGIN) -> Outcome:
    """Look at a block's rounds as the engine does while it measures, and stop where it stops.

    Args:
      rounds: of one or several processes, the block's planned launches.
      arms: the block's arms, its baseline first.
      margin: relative difference of step times that is negligible.
    """
    total = len(rounds.attempt)
    ends = [0, *(np.flatnonzero(np.diff(rounds.attempt)) + 1).tolist(), total]
    opponents = dict.fromkeys(arms[1:], arms[0])
    taken = np.arange(0)
    looks: list[int] = []
    shown: dict[str, Claim] = {}
    for start, stops in _looks(ends):
        for stop in stops:
            seen = np.concatenate([taken, np.arange(start, stop)])
            looks.append(len(seen))
            each = _alpha(total, tuple(looks), len(opponents))
            shown = compare(part(rounds, seen), opponents, each, margin)
            if all(claim.verdict.decided for claim in shown.values()):
                break
        taken = seen
    if len(taken) == total:
        return Outcome(total, shown, shown)
    every = tuple(stop for _, stops in _looks(ends) for stop in stops)
    whole = compare(rounds, opponents, _alpha(total, every, len(opponents)), margin)
    return Outcome(len(taken), shown, whole)


def _looks(ends: Sequence[int]) -> list[tuple[int, list[int]]]:
    """Return each process's first round, and the numbers of rounds at which looks are taken."""
    return [
        (start, [*(start + look for look in filter(is_look, range(end - start))), end])
        for start, end in pairwise(ends)
    ]


@cache
def _alpha(planned: int, looks: tuple[int, ...], comparisons: int) -> float:
    """Return each comparison's error at the last of these looks, given as numbers of rounds."""
    spending = AlphaSpending()
    alphas = [spending.look(look, look / planned, comparisons) for look in looks]
    return alphas[-1] / comparisons


def part(
    rounds: Rounds, rows: NDArray[np.intp], factors: Mapping[str, float] | None = None
) -> Rounds:
    """Select rounds by their indices, and the arms in `factors`, with times multiplied by them."""
    arms = tuple(rounds.arms if factors is None else factors)
    columns = np.array([rounds.arms.index(arm) for arm in arms])
    chosen = {
        name: table[rows] if table.ndim == 1 else table[np.ix_(rows, columns)]
        for field in fields(rounds)
        if (name := field.name) != "arms"
        for table in [getattr(rounds, name)]
    }
    if factors is not None:
        scale = np.array(list(factors.values()))
        chosen |= {name: chosen[name] * scale for name in ("throughput", "latency", "wash_out")}
    return replace(rounds, arms=arms, **chosen)
