"""Error levels for the tests of a series without a planned end: online false-discovery control.

The rule is LORD++ of Ramdas, Yang, Wainwright and Jordan (NeurIPS 2017, "Online control of the
false discovery rate with decaying memory"), a kind of alpha-investing (Foster and Stine, Journal of
the Royal Statistical Society B 70 (2008), 429). Let t_1 < t_2 < ... be the numbers of the tests
that made a finding. Then test t has the level

    g(t) W + (ALPHA - W) g(t - t_1) + ALPHA (g(t - t_2) + g(t - t_3) + ...)

so that a series starts with the wealth W, pays for every test, and earns with every finding. The
weights g sum to 1, and fall as t^-1.6 (Ramdas, Zrnic, Wainwright and Jordan, ICML 2018, "SAFFRON").
Each test has samples of its own, so the expected number of wrong findings is at most ALPHA times
that of findings, however many tests there are and whatever decides which one is next.

Tests of one batch share samples. Each has the level of the batch's last test, which depends on no
finding of the batch (Zrnic, Ramdas and Jordan, Journal of Machine Learning Research 22 (2021)).
"""

from collections.abc import Sequence

from bench.analyse.verdicts import ALPHA

WEALTH = ALPHA / 2
ZETA = 2.2857656646
"""The Riemann zeta function at 1.6."""


def level(found: Sequence[bool], batch: int = 1) -> float:
    """Return the two-sided error of each test of the next batch, whose tests share samples.

    `found` tells, for every test so far, whether it made a finding.
    """
    number = len(found) + batch
    since = [number - at for at, one in enumerate(found, start=1) if one]
    earned = [ALPHA - WEALTH, *(ALPHA for _ in since[1:])]
    paid = (share * _weight(age) for share, age in zip(earned, since, strict=False))
    return WEALTH * _weight(number) + sum(paid)


def _weight(age: int) -> float:
    """Return g(t): t^-1.6, normalized to sum to 1 over all t."""
    return float(age**-1.6) / ZETA
