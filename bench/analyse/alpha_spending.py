"""Error levels: spending over the looks at a block, and investing over a series of tests."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from bench.analyse.verdicts import ALPHA
from bench.records.rows import Look

RESERVE = 0.2
"""Share of ALPHA that is reserved for launches beyond the planned ones."""

_GRID = 201
"""Points of the grid on which densities are integrated by Simpson's rule; must be odd."""

WEALTH = ALPHA / 2


class AlphaSpending:
    """The errors spent by the looks at a block, given those of earlier launches.

    A spending function after Lan and DeMets, Biometrika 70 (1983), 659: the error spent so far
    depends only on the progress of the plan. Up to the end of the plan it grows linearly, to ALPHA
    less the reserve. A look at p times the plan, p > 1, has spent 1 - 1 / p of the reserve as well.

    Looks share rounds, so their errors are correlated. Under the null hypothesis, their joint
    distribution is that of a random walk, which is integrated numerically (Armitage, McPherson and
    Rowe, Journal of the Royal Statistical Society A 132 (1969), 235). An arm that has left the
    rounds walks less than this assumes, so its looks are correlated even more.
    """

    def __init__(self, looks: Sequence[Look] = ()) -> None:
        self.looks = list(looks)

    @property
    def spent(self) -> float:
        """Error spent by all looks so far."""
        return max((look["spent"] for look in self.looks), default=0.0)

    def look(self, rounds: int, progress: float, comparisons: float = 1) -> float:
        """Spend error on a look at the block's first `rounds` rounds, over all launches so far.

        `progress` is the share of the planned measuring that is done, above 1 beyond the plan;
        `comparisons` is the number among which the error is split evenly (Bonferroni's inequality).
        A look at the same number of rounds as the one before replaces it, with at least its error.
        A look at fewer rounds, or without progress, spends nothing and is not recorded.

        Return the error of this look, over all comparisons. It exceeds what the look spends,
        because part of it was spent by earlier looks.
        """
        last = self.looks[-1] if self.looks else Look(rounds=0, alpha=0.0, spent=0.0)
        more = rounds - last["rounds"]
        of_reserve = RESERVE * (1 - 1 / progress) if progress > 1 else 0.0
        until = max(ALPHA * ((1 - RESERVE) * min(progress, 1.0) + of_reserve), self.spent)
        if more < 0 or not rounds or (more and until == self.spent):
            return 0.0
        again = self.looks.pop()["alpha"] if self.looks and not more else 0.0
        each = _nominal(self.looks, rounds, (until - self.spent) / comparisons, comparisons)
        alpha = max(again, each * comparisons)
        self.looks.append({**last, "rounds": rounds, "alpha": alpha, "spent": until})
        return alpha


def _nominal(looks: Sequence[Look], rounds: int, spend: float, comparisons: float) -> float:
    """Return the two-sided nominal error of a look that spends `spend` beyond the earlier looks.

    `spend`, above 0, is the probability that the look is the first to find a difference under the
    null hypothesis; `rounds` is larger than at the earlier looks. The looks' errors, over all
    comparisons, were split among `comparisons`.
    """
    if not looks:
        return spend
    sums, weights, before = np.zeros(1), np.ones(1), 0
    for look in looks:
        limit = -float(special.ndtri(look["alpha"] / comparisons / 2)) * np.sqrt(look["rounds"])
        sums, weights = _step(sums, weights, look["rounds"] - before, limit)
        before = look["rounds"]
    spread = np.sqrt(rounds - before)

    def excess(limit: float) -> float:
        return float(weights @ (2 * special.ndtr((sums - limit) / spread))) - spend

    limit = optimize.brentq(excess, 0.0, 12 * np.sqrt(rounds))
    return 2 * float(special.ndtr(-limit / np.sqrt(rounds)))


def _step(
    sums: NDArray[np.float64], weights: NDArray[np.float64], rounds: int, limit: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Continue random walks by some standard normal steps, and keep those within both limits.

    `sums` and `weights`, (points,), are the walks' positions and probabilities; so is the result,
    on a new grid. `limit` is the largest absolute position of a walk that continues.
    """
    grid = np.linspace(-limit, limit, _GRID)
    simpson = np.full(_GRID, 2.0)
    simpson[1::2], simpson[[0, -1]] = 4.0, 1.0
    spread = np.sqrt(rounds)
    density = np.exp(-(((grid[:, np.newaxis] - sums) / spread) ** 2) / 2) @ weights
    return grid, density * simpson * (grid[1] - grid[0]) / 3 / spread / np.sqrt(2 * np.pi)


def level(found: Sequence[bool], batch: int = 1) -> float:
    """Return the two-sided error of each test of the next batch, whose tests share samples.

    `found` says of every test so far whether it made a finding. docs/refereeing.md says what this
    online control of the false discovery rate guarantees.

    The rule is LORD++ of Ramdas, Yang, Wainwright and Jordan (NeurIPS 2017, "Online control of the
    false discovery rate with decaying memory"). Let t_1 < t_2 < ... be the numbers of the tests
    that made a finding. Then test t has the level

        g(t) W + (ALPHA - W) g(t - t_1) + ALPHA (g(t - t_2) + g(t - t_3) + ...)

    with the wealth W. The weights g sum to 1, and fall as t^-1.6 (Ramdas, Zrnic, Wainwright and
    Jordan, ICML 2018, "SAFFRON"). Each test of a batch has the level of the batch's last test,
    which depends on no finding of the batch (Zrnic, Ramdas and Jordan, Journal of Machine Learning
    Research 22 (2021)).
    """
    number = len(found) + batch
    paid = [_weight(number - at) for at, one in enumerate(found, start=1) if one]
    return WEALTH * (_weight(number) - sum(paid[:1])) + ALPHA * sum(paid)


def _weight(age: int) -> float:
    """Return g(t): t^-1.6, normalized to sum to 1 over all t."""
    return float(age**-1.6 / special.zeta(1.6))
