"""Ratios of step times with their confidence intervals.

A ratio is time(arm) / time(other): 1.25 means that `arm` takes 25 % longer. It is estimated round
by round if the arms shared rounds; `between_blocks` and `between_runs` are for arms that did not.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.analyse.process_spread import ASSUMED, PROCESS, ProcessSpread, Series, Spreads
from bench.analyse.sample_rounds import Rounds, spreads
from bench.analyse.signed_rank import batches, estimated, fewest, shift
from bench.analyse.verdicts import Claim, claim, same

CONFIDENCE = 0.95

UNPAIRED_SD = 0.045
"""Standard deviation of log step times between processes that run one after another, as assumed
for shared hosts: some twenty times that of ratios within a round."""

UNPAIRED_FREEDOM = 4
"""Weight of UNPAIRED_SD as a prior, in degrees of freedom. No other quantity differs more between
hosts."""


@dataclass(frozen=True)
class Ratio:
    """time(arm) / time(other), with its standard error."""

    value: float
    error: float | None
    """Standard error of log(value); None where there are too few rounds for one."""
    freedom: float
    """Degrees of freedom of `error`, for Student's t."""
    rounds: int
    launches: int
    paired: bool
    """False where the arms never shared a round: drift of the host between them affects the value,
    and the error, where there is one."""
    differences: NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """(rounds,): log ratios of the rounds behind the value; None where there are none."""
    process: ProcessSpread = field(default=PROCESS, repr=False)
    """Contribution of the worker processes to the error of a paired ratio."""

    def interval(self, alpha: float = 1 - CONFIDENCE) -> tuple[float, float] | None:
        """Return an interval that misses the true ratio with probability alpha.

        None without an error. Where alpha is 0, or too small for the number of rounds, the interval
        excludes nothing. The part due to rounds is exact; that due to processes uses Student's t.
        The two are independent, so at each end of the interval of log(value), the distances from it
        are added in quadrature.
        """
        if self.error is None:
            return None
        if alpha <= 0:
            return 0.0, math.inf
        middle = math.log(self.value)
        if self.differences is None:
            width = student(self.freedom, alpha) * self.error
            return math.exp(middle - width), math.exp(middle + width)
        _, low, high = (float(end) for end in shift(self.differences, alpha))
        others = student(self.process.freedom, alpha) * self.process.sd
        below, above = math.hypot(middle - low, others), math.hypot(high - middle, others)
        return math.exp(middle - below), math.exp(middle + above)

    def half_width(self) -> float:
        """Return half the length of the 95 % interval of log(value); infinite without an error."""
        return math.log(self.high / self.low) / 2 if self.high and self.low else math.inf

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        return self.shown and self.shown[0]

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        return self.shown and self.shown[1]

    @cached_property
    def shown(self) -> tuple[float, float] | None:
        """The 95 % interval, cached because it is computed from all pairs of rounds."""
        return self.interval()


@lru_cache
def student(freedom: float, alpha: float) -> float:
    """Return half the width of Student's interval, in standard errors; a report needs few."""
    return -float(special.stdtrit(freedom, alpha / 2))


def columns(name: str, ratio: Ratio | None) -> dict[str, float]:
    """Return a ratio and the ends of its 95 % interval as columns, NaN where there is none."""
    low, high = (ratio and ratio.shown) or (math.nan, math.nan)
    return {name: ratio.value if ratio else math.nan, f"{name}_low": low, f"{name}_high": high}


def ratios(
    rounds: Rounds, opponents: Mapping[str, str], process: Spreads = ASSUMED
) -> dict[str, Ratio]:
    """Return time(arm) / time(opponent) of each arm, for all pairs that have samples.

    The ratio is paired where the two shared rounds. Otherwise it is the ratio of their medians over
    all rounds, without an error.
    """
    paired = {
        arm: estimate(series, process.between(arm, opponents[arm]))
        for arm, series in rounds.paired(opponents).items()
    }
    alone = spreads(rounds, "throughput") if len(paired) < len(opponents) else {}
    found = {}
    for arm, other in opponents.items():
        if arm in paired:
            found[arm] = paired[arm]
        elif arm in alone and other in alone:
            value = alone[arm].median / alone[other].median
            least = min(alone[arm].rounds, alone[other].rounds)
            found[arm] = Ratio(value, None, 0.0, least, launches=0, paired=False)
    return found


def compare(
    rounds: Rounds,
    opponents: Mapping[str, str],
    alphas: float | Mapping[str, float],
    margin: float,
    process: Spreads = ASSUMED,
    programs: Mapping[str, str] = {},
) -> dict[str, Claim]:
    """Return the claim about each arm against its opponent, for all pairs that have samples.

    `alphas` is the error of each comparison, or of all by arm, and `margin` the relative difference
    of step times that is negligible. `programs` has identities of the arms' programs, as far as
    they are known: arms that are proved to run the same program are the same, whatever their times.
    """
    each = alphas if isinstance(alphas, Mapping) else dict.fromkeys(opponents, alphas)
    return {
        arm: claim(ratio, each[arm], margin, same=same(programs, arm, opponents[arm]))
        for arm, ratio in ratios(rounds, opponents, process).items()
    }


def log_intervals(
    rounds: Rounds,
    pairs: Sequence[tuple[str, str]],
    alphas: float | Sequence[float],
    process: Spreads = ASSUMED,
) -> NDArray[np.float64]:
    """Return log(time(arm) / time(other)) and the ends of its interval: (pairs, 3).

    These are the logarithms of `value` and `interval(alpha)` of paired `ratios`, computed for all
    pairs at once because a report needs those of every block. `alphas` is the error of each pair,
    or of all. NaN for arms that never shared a round; with too few rounds, the ends are infinite.
    """
    logs = rounds.log_ratios(pairs).T
    shared = ~np.isnan(logs)
    counts = np.add.reduceat(shared, rounds.starts, axis=1, dtype=int)
    lengths = counts.sum(axis=1)
    each = np.broadcast_to(alphas, len(pairs))
    spreads = zip((process.between(*pair) for pair in pairs), each.tolist(), strict=True)
    widths = np.array([student(own.freedom, alpha) * own.sd for own, alpha in spreads])
    found = np.full((len(pairs), 3), np.nan)
    for alpha in np.unique(each).tolist():
        for length, some in batches(np.where(each == alpha, lengths, 0)):
            middle, low, high = shift(logs[some][shared[some]].reshape(-1, length), alpha)
            others = widths[some] * np.sqrt((counts[some] ** 2).sum(axis=1)) / length
            ends = middle - np.hypot(middle - low, others), middle + np.hypot(high - middle, others)
            found[some] = np.column_stack([middle, *ends])
    return found


def estimate(series: Series, process: ProcessSpread = PROCESS) -> Ratio:
    """Estimate a paired ratio over rounds and worker processes.

    `series` are log ratios, an array per process with one value per round; `process` is the spread
    between processes beyond the noise of their rounds.

    The value is the Hodges-Lehmann estimate over all rounds together. Its interval has two parts:
    the signed-rank test's for rounds (see bench.analyse.signed_rank), and for processes
    s sqrt(sum n_i^2) / sum n_i, where process i has n_i rounds and s is `process`, with its degrees
    of freedom. `error` and `freedom` combine both by Satterthwaite's formula (Biometrics Bulletin 2
    (1946), 110), so that ratios can themselves be divided.
    """
    differences = np.concatenate(series)
    counts = np.array([len(values) for values in series], float)
    total = len(differences)
    share = float(np.sqrt((counts**2).sum()) / total)
    location, of_rounds = map(float, estimated(differences))
    own = ProcessSpread(process.sd * share, process.freedom)
    error, freedom = None, 0.0
    if total >= fewest(1 - CONFIDENCE):
        variance = of_rounds**2 + own.sd**2
        # The width of a signed-rank interval is known about as well as a standard deviation of half
        # as many normal numbers.
        freedom = variance**2 / (of_rounds**4 / (total / 2) + own.sd**4 / own.freedom)
        error = math.sqrt(variance)
    return Ratio(
        math.exp(location), error, freedom, total, len(series),
        paired=True, differences=differences, process=own,
    )  # fmt: skip


def between_runs(above: Series, below: Series) -> Ratio | None:
    """Return the ratio of step times of two runs, which never ran side by side.

    `above` and `below` are the log seconds per step of both, an array per worker with one value per
    round; None where either has no samples. Each run's value is the mean of its processes' medians.
    Its error is not the standard error of that mean but that of one process, at least UNPAIRED_SD:
    the processes of a run share the conditions of their hour, so they may agree and all be biased.
    Processes that disagree widen the interval; many that agree do not narrow it.

    Both runs rest on the same UNPAIRED_SD and are wrong together if it does not fit the host, so
    the degrees of freedom of their `quotient` stay UNPAIRED_FREEDOM. A 95 % interval therefore
    reaches at least 16 % below and 19 % above the value.
    """
    if above and below:
        return quotient(_with_host_drift(above), _with_host_drift(below), UNPAIRED_FREEDOM)
    return None


def between_blocks(above: Series, below: Series) -> Ratio | None:
    """Return the ratio of step times of two blocks of one run, whose launches are interleaved.

    Arguments and result are as for `between_runs`. The processes of both blocks ran in random order
    over the same period, so their differences, assumed to be UNPAIRED_SD and updated by their own
    spread, average out over launches.
    """
    if above and below:
        return quotient(_mean_of_processes(above), _mean_of_processes(below), UNPAIRED_FREEDOM)
    return None


def _mean_of_processes(series: Series) -> Ratio:
    """Return the mean of processes' medians, exponentiated: seconds per step.

    The variance of a process's median is the average of UNPAIRED_SD squared and the variance of the
    processes themselves, weighted by their degrees of freedom.
    """
    medians = [float(np.median(values)) for values in series]
    count, rounds = len(medians), sum(map(len, series))
    freedom = float(UNPAIRED_FREEDOM + count - 1)
    spread = count * float(np.var(medians))
    variance = (UNPAIRED_FREEDOM * UNPAIRED_SD**2 + spread) / freedom
    error = math.sqrt(variance / count) if rounds >= fewest(1 - CONFIDENCE) else None
    mean = math.exp(sum(medians) / count)
    return Ratio(mean, error, freedom, rounds, count, paired=False)


def _with_host_drift(series: Series) -> Ratio:
    """Return a run's seconds per step, with the error that `between_runs` describes."""
    mean = _mean_of_processes(series)
    error = mean.error and max(UNPAIRED_SD, math.sqrt(mean.launches) * mean.error)
    return replace(mean, error=error, freedom=UNPAIRED_FREEDOM)


def quotient(above: Ratio, below: Ratio, shared: float = PROCESS.freedom) -> Ratio:
    """Return the ratio of two ratios; the errors u and v of their logarithms add in quadrature.

    The degrees of freedom are Satterthwaite's (Biometrics Bulletin 2 (1946), 110) with a covariance
    of the two variances. Both contain the same constant, an estimate with `shared` degrees of
    freedom, so they are too small or too large together. With a and b degrees of freedom each, and
    the parts p and q that depend on the constant, with c and d degrees of freedom,

        (u^2 + v^2)^2 / (u^4 / a + v^4 / b + 2 p q shared / (c d)),

    which is Welch's formula where nothing is shared, and `shared` where everything is. There is no
    error if either ratio has none. Rounds and launches are those of the ratio with fewer.
    """
    error, freedom = None, 0.0
    if above.error is not None and below.error is not None:
        one, other = above.error**2, below.error**2
        error = math.sqrt(one + other)
        (p, c), (q, d) = map(_assumed_part, (above, below))
        common = 2 * p * q * shared / (c * d)
        spread = one**2 / above.freedom + other**2 / below.freedom + common
        freedom = (one + other) ** 2 / spread if spread else above.freedom
    least = (min(above.rounds, below.rounds), min(above.launches, below.launches))
    paired = above.paired and below.paired
    return Ratio(above.value / below.value, error, freedom, *least, paired=paired)


def _assumed_part(ratio: Ratio) -> tuple[float, float]:
    """Return the part of a ratio's variance that rests on a prior, and its degrees of freedom."""
    if ratio.differences is None:
        return (ratio.error or 0.0) ** 2, ratio.freedom
    return ratio.process.sd**2, ratio.process.freedom
