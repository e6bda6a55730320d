"""Simultaneous comparison of a block's arms with the fastest: leaders, and tiers of slower arms.

Let k arms have the times t_1 .. t_k, let b be the fastest of them, and let [low_ij, high_ij] be an
interval for t_i / t_j with error alpha / (k - 1). The k - 1 intervals against b hold simultaneously
with probability at least 1 - alpha. Whenever they do (Edwards and Hsu, Journal of the American
Statistical Association 78 (1983), 965: multiple comparisons with the best),

- b is one of the leaders S = {j: low_ji <= 1 for all i};
- t_i / t_b lies between the minimum of max(1, low_ij) and the maximum of high_ij over j in S;
- t_i / t_j is at least the minimum of max(1, low_ic) / high_jc over c in S.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bench.analyse.process_spread import ASSUMED, Spreads
from bench.analyse.ratio_intervals import log_intervals
from bench.analyse.sample_rounds import Rounds
from bench.records.grouping import grouped


@dataclass(frozen=True)
class Standings:
    """Simultaneous statements about the arms of a block."""

    leaders: tuple[str, ...]
    """The arms that may be the fastest, sorted by the upper bound of `behind`. Empty where no arms
    shared a round."""
    tiers: tuple[tuple[str, ...], ...]
    """The other arms that shared a round with any, by estimated time. Those of one tier cannot be
    ranked among themselves, and each is surely slower than every arm of the tiers before. The first
    tier is surely slower than the fastest arm, but not always than every leader."""
    behind: dict[str, tuple[float, float]]
    """By arm, an interval of its time over that of the fastest; its ends lie from 1 to infinity."""

    @property
    def largest_ratio(self) -> float:
        """Upper bound on the ratio of any two leaders' times; 1 for a single leader."""
        return max((self.behind[arm][1] for arm in self.leaders), default=math.inf)

    def tier(self, arm: str) -> float:
        """Return the number of an arm's tier, 0 for leaders; NaN for an arm that is not ranked."""
        every = enumerate((self.leaders, *self.tiers))
        return next((float(place) for place, arms in every if arm in arms), math.nan)


def rank(
    rounds: Rounds,
    arms: Sequence[str],
    alpha: float,
    process: Spreads = ASSUMED,
    programs: Mapping[str, str] = {},
    errors: Mapping[frozenset[str], float] = {},
) -> Standings:
    """Return the standings of the arms that shared a round with any other arm.

    Of arms that run the same program (`programs` has identities, as far as they are known), the one
    with the most rounds is compared for all of them, so that the others may leave the rounds early,
    and fewer comparisons share the error. A single arm is its own leader. `alpha` is the error of
    all statements together; with 0, nothing is excluded. With `errors` of pairs whose claims were
    decided at an earlier look, no leader is surely slower by such a claim.
    """
    present = ~np.isnan(rounds.throughput)
    counts = dict(zip(rounds.arms, present[present.sum(axis=1) > 1].sum(axis=0), strict=True))
    by_rounds = sorted(arms, key=lambda arm: -counts.get(arm, 0))
    alike = grouped((programs.get(arm) or arm, arm) for arm in by_rounds)
    groups = {group[0]: group for group in alike.values()}
    names, middle, high = _logs(rounds, list(groups), alpha, process, errors)
    leads = (-high.T <= 0).all(axis=1)
    leads |= not leads.any()  # a cycle, in which each is slower than another: nothing is sure
    # Rows are arms, columns those that may be the fastest.
    least, most = np.maximum(-high.T[:, leads], 0), np.maximum(high[:, leads], 0)
    nearest, farthest = least.min(axis=1, initial=math.inf), most.max(axis=1, initial=0)
    sure = (least[:, np.newaxis] - most).min(axis=2, initial=math.inf)
    leaders = sorted(np.flatnonzero(leads), key=lambda arm: (farthest[arm], middle[arm].sum()))
    others = sorted(np.flatnonzero(~leads), key=lambda arm: middle[arm, leaders[0]])
    tiers: list[list[np.intp]] = []
    for place, one in enumerate(others):
        if not tiers or sure[np.ix_(others[place:], [*leaders, *others[:place]])].min() > 0:
            tiers.append([])
        tiers[-1].append(one)

    alike_to = [groups[name] for name in names]
    return Standings(
        leaders=tuple(other for arm in leaders for other in alike_to[arm]),
        tiers=tuple(tuple(other for arm in tier for other in alike_to[arm]) for tier in tiers),
        behind={
            other: (math.exp(nearest[arm]), math.exp(farthest[arm]))
            for arm, group in enumerate(alike_to)
            for other in group
        },
    )


def _logs(
    rounds: Rounds,
    arms: Sequence[str],
    alpha: float,
    process: Spreads,
    errors: Mapping[frozenset[str], float],
) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    """Return the arms to rank, and the estimates and upper bounds of log(time(i) / time(j))."""
    known = [arm for arm in arms if arm in rounds.arms]
    columns = rounds.throughput[:, [rounds.arms.index(arm) for arm in known]]
    present = (~np.isnan(columns)).astype(int)
    kept = ((present.T @ present > 0).sum(axis=1) > 1) | (len(arms) == 1)
    names = [*compress(known, kept)]
    typical = np.log(pd.DataFrame(columns[:, kept]).median().to_numpy(float))
    middle, high = typical[:, np.newaxis] - typical, np.where(np.eye(len(names)), 0, math.inf)
    pairs, count = [*combinations(names, 2)], max(1, len(names) - 1)
    alphas = [errors.get(frozenset(pair), alpha) / count for pair in pairs]
    found = log_intervals(rounds, pairs, alphas, process).T
    shared = ~np.isnan(found[0])
    one, other = (ends[shared] for ends in np.triu_indices(len(names), 1))
    estimate, low, above = found[:, shared]
    middle[one, other], middle[other, one] = estimate, -estimate
    high[one, other], high[other, one] = above, -low
    return names, middle, high
