"""Ratios of step times, and how sure they are.

A ratio is time(arm) / time(other): 1.25 means that `arm` takes 25 % longer. Within a run, it is
taken round by round. Blocks and runs that share no round are compared by `apart` and `unpaired`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from bench.analyse.median_intervals import CONFIDENCE, interval_depth, median_variance, stacked
from bench.analyse.sample_rounds import Rounds, spreads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Series = Sequence[NDArray[np.float64]]

PROCESS_SD = 0.002
"""Standard deviation of log ratios between worker processes, beyond what their rounds show."""

PROCESS_FREEDOM = 4
"""How firmly PROCESS_SD is believed: like an estimate with so many degrees of freedom. With the
default three launches, their own spread has a third of the weight."""

FREEDOM_OF_ROUNDS = 2
"""Times the cube root of its rounds: degrees of freedom of a process's `median_variance`. That of
order statistics is known no better; tests/analyse/test_ratio_intervals.py simulates it."""

_FREEDOM_OF_POOLED = 8
"""Like PROCESS_FREEDOM, for the pooled noise of all processes' rounds as a guess of each one's."""

UNPAIRED_SD = 0.045
"""Standard deviation of log step times between processes that run one after the other, as assumed
of shared hosts: some twenty times that of ratios within a round."""

UNPAIRED_FREEDOM = 4
"""Like PROCESS_FREEDOM, for UNPAIRED_SD. Hosts differ more in this than in anything else."""


@dataclass(frozen=True)
class Ratio:
    """time(arm) / time(other), and how sure that is."""

    value: float
    error: float | None
    """Standard error of log(value); None where there are too few rounds for one."""
    freedom: float
    """Degrees of freedom of `error`, for Student's t."""
    rounds: int
    launches: int
    paired: bool
    """False where the arms never shared a round: drift of the host between them is in the value,
    and in the error, where there is one."""

    def interval(self, alpha: float = 1 - CONFIDENCE) -> tuple[float, float] | None:
        """Return an interval that misses the true ratio with probability alpha.

        None without an error. Where alpha is 0, the interval excludes nothing.
        """
        if self.error is None:
            return None
        if alpha <= 0:
            return 0.0, math.inf
        middle, width = math.log(self.value), self.half_width(alpha)
        return math.exp(middle - width), math.exp(middle + width)

    def half_width(self, alpha: float = 1 - CONFIDENCE) -> float:
        """Return how far the interval reaches from log(value); infinite without an error."""
        if self.error is None or alpha <= 0:
            return math.inf
        return -float(special.stdtrit(self.freedom, alpha / 2)) * self.error

    @property
    def inverse(self) -> Ratio:
        """time(other) / time(arm), which is as sure."""
        return replace(self, value=1 / self.value)

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval."""
        interval = self.interval()
        return None if interval is None else interval[0]

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval."""
        interval = self.interval()
        return None if interval is None else interval[1]


def floor_width(floor: Ratio) -> float:
    """Return the largest |log ratio| that an A/A comparison admits; about a relative difference."""
    return max(abs(math.log(end)) for end in (floor.value, floor.low, floor.high) if end)


def ratios(rounds: Rounds, opponents: Mapping[str, str]) -> dict[str, Ratio]:
    """Return time(arm) / time(opponent) of each arm, wherever both have samples.

    The ratio is paired where the two shared rounds. Elsewhere it is that of the medians over all
    rounds of each, without an error.
    """
    series = rounds.paired(opponents)
    paired = dict(zip(series, estimates(list(series.values())), strict=True))
    alone = spreads(rounds, "throughput") if len(paired) < len(opponents) else {}
    found = {}
    for arm, other in opponents.items():
        if arm in paired:
            found[arm] = paired[arm]
        elif arm in alone and other in alone:
            value = alone[arm].median / alone[other].median
            fewest = min(alone[arm].rounds, alone[other].rounds)
            found[arm] = Ratio(value, None, 0.0, fewest, launches=0, paired=False)
    return found


def estimate(
    series: Series, process_sd: float = PROCESS_SD, process_freedom: float = PROCESS_FREEDOM
) -> Ratio:
    """Return the paired estimate over rounds and worker processes.

    `series` are log ratios, an array a process with one value a round. Process i contributes the
    median m_i of its rounds, with a variance v_i: see `median_variance`. Processes differ by more
    than their rounds show (memory layout, thread placement), with a variance s^2. It is taken to be
    `process_sd` squared, believed like an estimate with f = `process_freedom` degrees of freedom,
    and the spread of the n processes themselves counts with the n - 1 that it has,

        s^2 = (f process_sd^2 + (n - 1) max(0, var(m) - mean(v))) / (f + n - 1),

    the moment estimator of DerSimonian and Laird (Controlled Clinical Trials 7 (1986), 177), with
    equal weights, shrunk like the variances of Smyth's moderated t (Statistical Applications in
    Genetics and Molecular Biology 3 (2004)). The estimate is the mean of the m_i with weights
    w_i = 1 / (s^2 + u_i), of variance sum(w_i^2 (s^2 + v_i)) / sum(w_i)^2. A process counts for
    more where its rounds show less noise, but not by its own v_i alone, which is known so badly
    that the mean would look surer than it is: u_i is v_i shrunk towards what the noise of all
    processes' rounds would be in as many rounds as it has. The degrees of freedom are
    Satterthwaite's for the two parts of the variance: f + n - 1 for what processes add, and for
    what rounds add those of a median's variance, summed over processes.
    """
    return estimates([series], process_sd, process_freedom)[0]


def estimates(
    many: Sequence[Series],
    process_sd: float = PROCESS_SD,
    process_freedom: float = PROCESS_FREEDOM,
) -> list[Ratio]:
    """Return `estimate` of several arms' series, each by itself, computed at once."""
    long = [[values for values in series if interval_depth(len(values))[0]] for series in many]
    known = [series for series in long if series]
    combined = iter(_combined(known, process_sd, process_freedom) if known else ())
    found = []
    for series, sure in zip(many, long, strict=True):
        # Where no process has enough rounds for an error, the value is the median of all rounds.
        log, error, freedom = (
            next(combined) if sure else (float(np.median(np.concatenate(series))), None, 0.0)
        )
        rounds = sum(map(len, series))
        found.append(Ratio(math.exp(log), error, freedom, rounds, len(series), paired=True))
    return found


def _combined(
    many: Sequence[Series], process_sd: float, process_freedom: float
) -> Iterator[tuple[float, float, float]]:
    """Yield each arm's log estimate, its error and its degrees of freedom."""
    flat = [values for series in many for values in series]
    medians, variances, rounds = np.empty((3, len(flat)))
    for places, values in stacked(flat):
        medians[places], variances[places] = np.median(values, axis=-1), median_variance(values)
        rounds[places] = values.shape[-1]
    processes = np.array([len(series) for series in many])
    firsts = np.cumsum(processes) - processes

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the processes of each arm."""
        return np.add.reduceat(values, firsts)

    def each(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Repeat an arm's value for each of its processes."""
        return np.repeat(values, processes)

    spread_freedom = process_freedom + processes - 1
    deviations = medians - each(total(medians) / processes)
    excess = total(deviations**2) / np.maximum(processes - 1, 1) - total(variances) / processes
    between = process_freedom * process_sd**2 + (processes - 1) * np.maximum(excess, 0)
    between /= spread_freedom
    freedoms = FREEDOM_OF_ROUNDS * np.cbrt(rounds)
    pooled = each(total(freedoms * variances * rounds) / total(freedoms)) / rounds
    shrunk = (freedoms * variances + _FREEDOM_OF_POOLED * pooled) / (freedoms + _FREEDOM_OF_POOLED)
    weights = 1 / (each(between) + shrunk)
    weights /= each(total(weights))
    of_processes, of_rounds = total(weights**2) * between, total(weights**2 * variances)
    variance = of_processes + of_rounds
    freedom = variance**2 / (of_processes**2 / spread_freedom + of_rounds**2 / total(freedoms))
    logs, errors = total(weights * medians), np.sqrt(variance)
    return zip(logs.tolist(), errors.tolist(), freedom.tolist(), strict=True)


def unpaired(above: Series, below: Series) -> Ratio | None:
    """Return the ratio of step times of two runs, which never ran side by side.

    Args:
      above: log seconds a step in one run, an array a worker process with one value a round.
      below: the same in the other run.

    Each run's value is `estimate`'s mean over its processes, and each has an error of its own. That
    error is not the mean's. Processes of one run share its hour (the neighbours, the clock rate,
    the machine that hosts the guest), so they may agree with one another and all be off together;
    neither run can see by how much. How UNPAIRED_SD is divided between what processes of one run
    share and what they do not is unknown, so all of it is taken to be shared: a run's variance is
    that of one process, n times its mean's, and never below UNPAIRED_SD^2. Processes that disagree
    make the interval wider; many that agree make it no narrower. If they did, a few launches on a
    host that was steady for an hour would prove two runs of one program different that were made in
    different hours, which is the error that matters here.

    Both runs rest on the same UNPAIRED_SD and are wrong together if it does not fit the host, so
    the freedom of their `quotient` stays UNPAIRED_FREEDOM. A 95 % interval therefore reaches at
    least 16 % below and 19 % above the value. None where either has no samples.
    """
    if not above or not below:
        return None
    found = quotient(_of_its_hour(above), _of_its_hour(below), UNPAIRED_FREEDOM)
    return replace(found, paired=False)


def apart(above: Series, below: Series) -> Ratio | None:
    """Return the ratio of step times of two blocks of one run, whose launches take turns.

    Args:
      above: log seconds a step in one block, an array a worker process with one value a round.
      below: the same in the other block.

    The blocks never ran side by side, but their processes share an hour, in random order: their
    differences, assumed as UNPAIRED_SD and corrected by their own spread, average out over
    launches, unlike those between runs (`unpaired`). None where either has no samples.
    """
    if not above or not below:
        return None
    one, other = (estimate(series, UNPAIRED_SD, UNPAIRED_FREEDOM) for series in (above, below))
    return replace(quotient(one, other, UNPAIRED_FREEDOM), paired=False)


def _of_its_hour(series: Series) -> Ratio:
    """Return a run's seconds a step, with the error of `unpaired`."""
    mean = estimate(series, UNPAIRED_SD, UNPAIRED_FREEDOM)
    if mean.error is None:
        return mean
    error = max(UNPAIRED_SD, math.sqrt(mean.launches) * mean.error)
    return replace(mean, error=error, freedom=UNPAIRED_FREEDOM)


def quotient(above: Ratio, below: Ratio, shared: float = PROCESS_FREEDOM) -> Ratio:
    """Return the ratio of two ratios, with the errors u and v of their logarithms in quadrature.

    The degrees of freedom are Satterthwaite's (Biometrics Bulletin 2 (1946), 110) with a covariance
    of the two variances: both contain the same constant, an estimate with `shared` degrees of
    freedom, and are too small or too large together. With a and b degrees of freedom each,

        (u^2 + v^2)^2 / (u^4 / a + v^4 / b + 2 u^2 v^2 shared / (a b)),

    which is Welch's where nothing is shared, and `shared` where there is nothing else. Without an
    error where either has none. Rounds and launches are those of the ratio with fewer.
    """
    error, freedom = None, 0.0
    if above.error is not None and below.error is not None:
        one, other = above.error**2, below.error**2
        error = math.sqrt(one + other)
        common = 2 * one * other * shared / (above.freedom * below.freedom)
        freedom = (one + other) ** 2 / (one**2 / above.freedom + other**2 / below.freedom + common)
    return Ratio(
        above.value / below.value,
        error,
        freedom,
        min(above.rounds, below.rounds),
        min(above.launches, below.launches),
        paired=above.paired and below.paired,
    )
