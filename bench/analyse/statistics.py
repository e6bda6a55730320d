"""From samples to numbers: step times, ratios between arms, and how sure they are.

A ratio is time(arm) / time(other): 1.25 means that `arm` takes 25 % longer. Arms take turns within
a round, so what slows the host slows both; the ratio is taken round by round. What ran in two runs
shares no round: `unpaired` and `quotient` compare it. Imports no jax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from scipy import special

from bench.records.arms import TWIN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

CONFIDENCE = 0.95

PROCESS_SD = 0.002
"""Standard deviation of log ratios between worker processes, beyond what their rounds show."""

PROCESS_FREEDOM = 4
"""How firmly PROCESS_SD is believed: as an estimate of so many degrees of freedom. With the default
three launches their own spread has a third of the say."""

_FREEDOM_OF_ROUNDS = 2
"""Times the cube root of its rounds: degrees of freedom of a process's `median_variance`. That of
order statistics is known no better; tests/test_statistics.py simulates it."""

_FREEDOM_OF_POOLED = 8
"""As PROCESS_FREEDOM, of the noise of all processes' rounds, as a guess of that of each."""

UNPAIRED_SD = 0.045
"""Standard deviation of log step times between processes that run one after the other, as assumed
of shared hosts: some twenty times that of ratios within a round."""

UNPAIRED_FREEDOM = 4
"""As PROCESS_FREEDOM, of UNPAIRED_SD. Hosts differ more in this than in anything else."""

_LARGEST_AUTOCORRELATION = 0.9
"""Of neighbouring rounds. Nearer to 1, no factor makes up for it."""

Figure = Literal["throughput", "latency"]


@dataclass(frozen=True)
class Turns:
    """Samples, of one block or of many, as arrays with an element a sample."""

    names: NDArray[np.str_]
    """Of arms, in the order in which they come."""
    arm: NDArray[np.intp]
    """Index in `names`."""
    predecessor: NDArray[np.intp]
    """Index in `names` of who ran just before, -1 where none of these did."""
    attempt: NDArray[np.intp]
    """Number of the worker process, in the order in which they come."""
    round: NDArray[np.int64]
    position: NDArray[np.int64]
    throughput: NDArray[np.float64]
    """Seconds a step."""
    latency: NDArray[np.float64]

    @classmethod
    def of(cls, samples: pd.DataFrame) -> Turns:
        """From a frame with the columns of bench.records.rows.SampleRow."""
        arm, names = pd.factorize(samples["arm"])

        def seconds(span: str, steps: str) -> NDArray[np.float64]:
            a_step: NDArray[np.float64] = samples[span].to_numpy(float) / samples[steps].to_numpy()
            return a_step / 1e9

        return cls(
            names=np.asarray(names, np.str_),
            arm=arm,
            predecessor=pd.Index(names).get_indexer(samples["predecessor"]),
            attempt=pd.factorize(samples["attempt"])[0],
            round=samples["round"].to_numpy(np.int64),
            position=samples["position"].to_numpy(np.int64),
            throughput=seconds("throughput_ns", "steps"),
            latency=seconds("latency_ns", "latency_steps"),
        )

    def at(self, places: NDArray[np.intp]) -> Turns:
        """Those at so numbered places."""
        each = (getattr(self, own.name)[places] for own in fields(self) if own.name != "names")
        return Turns(self.names, *each)


@dataclass(frozen=True)
class Rounds:
    """A block's samples, by round and arm."""

    arms: tuple[str, ...]
    attempt: NDArray[np.int64]
    """(rounds,): which worker process a round belongs to; those of a process lie together."""
    throughput: NDArray[np.float64]
    """(rounds, arms): seconds a step, in order of time; NaN where an arm had no turn."""
    latency: NDArray[np.float64]
    """As `throughput`, waiting after every step."""
    position: NDArray[np.float64]
    """(rounds, arms): place of the turn in its round, from 0."""
    predecessor: NDArray[np.float64]
    """(rounds, arms): index in `arms` of who ran just before; NaN for the first of a round, before
    which the harness itself had its turn."""

    @classmethod
    def of(cls, samples: pd.DataFrame) -> Rounds:
        """Arrange the samples of one block: a frame with the columns of bench.records.rows.SampleRow."""
        return cls.arranged(Turns.of(samples))

    @classmethod
    def arranged(cls, turns: Turns) -> Rounds:
        """Arrange the turns of one block."""
        names, column = _as_they_come(turns.arm)
        longest = int(turns.round.max(initial=0)) + 1
        keys, row = np.unique(turns.attempt * longest + turns.round, return_inverse=True)
        _, attempt = np.unique(keys // longest, return_inverse=True)

        def table(values: NDArray[np.generic]) -> NDArray[np.float64]:
            found = np.full((len(keys), len(names)), np.nan)
            found[row, column] = values
            return found

        # By the index of an arm; the last place is that of -1, no arm.
        places = np.full(len(turns.names) + 1, np.nan)
        places[names] = np.arange(len(names))
        return cls(
            arms=tuple(turns.names[names].tolist()),
            attempt=attempt,
            throughput=table(turns.throughput),
            latency=table(turns.latency),
            position=table(turns.position),
            predecessor=table(np.where(turns.position == 0, np.nan, places[turns.predecessor])),
        )

    def seconds(self, arm: str, figure: Figure) -> NDArray[np.float64]:
        """Seconds a step of each round, in order; NaN where it had no turn."""
        if arm not in self.arms:
            return np.full(len(self.attempt), np.nan)
        table: NDArray[np.float64] = getattr(self, figure)
        return table[:, self.arms.index(arm)]

    def log_ratios(self, arm: str, other: str) -> list[NDArray[np.float64]]:
        """log(time(arm) / time(other)) of every round they shared, an array a worker process."""
        return self.paired({arm: other}).get(arm, [])

    def paired(self, opponents: Mapping[str, str]) -> dict[str, list[NDArray[np.float64]]]:
        """`log_ratios` of arms, each to an opponent of its own, by those that shared any round."""
        known = {a: b for a, b in opponents.items() if {a, b} <= set(self.arms)}
        arms, others = (list(map(self.arms.index, names)) for names in (known, known.values()))
        series = self._series(np.log(self.throughput[:, arms] / self.throughput[:, others]))
        return {arm: found for arm, found in zip(known, series, strict=True) if found}

    def log_seconds(self, arm: str) -> list[NDArray[np.float64]]:
        """log(seconds a step) of every round the arm had a turn in, an array a worker process."""
        return self._series(np.log(self.seconds(arm, "throughput"))[:, np.newaxis])[0]

    def _series(self, values: NDArray[np.float64]) -> list[list[NDArray[np.float64]]]:
        """What is there in each column of (rounds, columns), an array a worker process."""
        there = ~np.isnan(values)
        ends = [0, *(np.flatnonzero(np.diff(self.attempt)) + 1).tolist(), len(values)]
        each = [slice(start, end) for start, end in pairwise(ends)]
        return [
            [found for own in each if (found := column[own][known[own]]).size]
            for column, known in zip(values.T, there.T, strict=True)
        ]


def _as_they_come(codes: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The different codes in the order in which they come, and the place of each among them."""
    found, first, place = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return found[order], np.argsort(order)[place]


@dataclass(frozen=True)
class Spread:
    """Seconds a step over an arm's rounds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    rounds: int


@dataclass(frozen=True)
class Ratio:
    """time(arm) / time(other), and how sure that is."""

    value: float
    error: float | None
    """Standard error of log(value); None where the rounds allow none."""
    freedom: float
    """Degrees of freedom of `error`, for Student's t."""
    rounds: int
    launches: int
    paired: bool
    """False where the arms never shared a round: drift of the host between them is in the value,
    and in the error, where there is one."""

    def interval(self, alpha: float = 1 - CONFIDENCE) -> tuple[float, float] | None:
        """Interval of the ratio that misses the truth with probability alpha.

        None without an error. Where alpha is 0, nothing is excluded.
        """
        if self.error is None:
            return None
        if alpha <= 0:
            return 0.0, math.inf
        middle, width = math.log(self.value), self.half_width(alpha)
        return math.exp(middle - width), math.exp(middle + width)

    def half_width(self, alpha: float = 1 - CONFIDENCE) -> float:
        """How far the interval reaches from log(value); infinite without an error."""
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


def spread(rounds: Rounds, arm: str, figure: Figure) -> Spread | None:
    """Median and quartiles of `arm`'s seconds a step; None if it has no samples."""
    return spreads(rounds, figure).get(arm)


def spreads(rounds: Rounds, figure: Figure) -> dict[str, Spread]:
    """`spread` of all arms that have samples."""
    seconds = np.sort(getattr(rounds, figure).T)  # NaN last
    counts = (~np.isnan(seconds)).sum(axis=1)
    # As np.nanquantile does by default, which takes several times as long.
    places = np.outer(counts - 1, [0.5, 0.25, 0.75])
    below = places.astype(np.intp)
    above = np.minimum(below + 1, counts[:, np.newaxis] - 1)
    arms = np.arange(len(seconds))[:, np.newaxis]
    low, high = seconds[arms, below], seconds[arms, above]
    found = low + (high - low) * (places - below)
    each = zip(rounds.arms, *found.T.tolist(), counts.tolist(), strict=True)
    return {arm: Spread(*figures) for arm, *figures in each if figures[-1]}


def ratio(rounds: Rounds, arm: str, other: str) -> Ratio | None:
    """time(arm) / time(other) from rounds they shared, else from all rounds of each.

    Only the former has an error. None where either has no samples.
    """
    return ratios(rounds, {arm: other}).get(arm)


def ratios(rounds: Rounds, opponents: Mapping[str, str]) -> dict[str, Ratio]:
    """`ratio` of arms, each to an opponent of its own, by those that have one."""
    series = rounds.paired(opponents)
    paired = dict(zip(series, estimates(list(series.values())), strict=True))
    found = {
        arm: paired.get(arm) or _of_all_rounds(rounds, arm, opponents[arm]) for arm in opponents
    }
    return {arm: ratio for arm, ratio in found.items() if ratio is not None}


def _of_all_rounds(rounds: Rounds, arm: str, other: str) -> Ratio | None:
    above, below = (spread(rounds, name, "throughput") for name in (arm, other))
    if above is None or below is None:
        return None
    value, fewest = above.median / below.median, min(above.rounds, below.rounds)
    return Ratio(value, None, 0.0, fewest, launches=0, paired=False)


def estimate(
    series: Sequence[NDArray[np.float64]],
    process_sd: float = PROCESS_SD,
    process_freedom: float = PROCESS_FREEDOM,
) -> Ratio:
    """The paired estimator over rounds and worker processes.

    `series` are log ratios, an array a process with one value a round. Process i contributes the
    median m_i of its rounds, with a variance v_i: see `median_variance`. Processes differ by more
    than their rounds show (memory layout, thread placement), with a variance s^2. It is taken to be
    `process_sd` squared, believed as an estimate of f = `process_freedom` degrees of freedom, and
    of n processes their own spread counts as much as it has: n - 1,

        s^2 = (f process_sd^2 + (n - 1) max(0, var(m) - mean(v))) / (f + n - 1),

    the moment estimator of DerSimonian and Laird (Controlled Clinical Trials 7 (1986), 177), with
    equal weights, shrunk as variances are in Smyth's moderated t (Statistical Applications in
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
    many: Sequence[Sequence[NDArray[np.float64]]],
    process_sd: float = PROCESS_SD,
    process_freedom: float = PROCESS_FREEDOM,
) -> list[Ratio]:
    """`estimate` of several arms' series, each by itself; at once, as there may be many arms."""
    long = [[values for values in series if _depth(len(values))[0]] for series in many]
    known = [series for series in long if series]
    found = iter(_combined(known, process_sd, process_freedom) if known else ())
    return [
        _ratio(series, *(next(found) if sure else ()))
        for series, sure in zip(many, long, strict=True)
    ]


def _combined(
    many: Sequence[Sequence[NDArray[np.float64]]], process_sd: float, process_freedom: float
) -> Iterator[tuple[float, float, float]]:
    """Of each arm, the estimate's logarithm, its error and its degrees of freedom."""
    flat = [values for series in many for values in series]
    medians, variances, rounds = np.empty((3, len(flat)))
    for places, values in stacked(flat):
        medians[places], variances[places] = median(values), median_variance(values)
        rounds[places] = values.shape[-1]
    processes = np.array([len(series) for series in many])
    firsts = np.cumsum(processes) - processes

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Over the processes of each arm."""
        return np.add.reduceat(values, firsts)

    def each(values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each arm, for each of its processes."""
        return np.repeat(values, processes)

    spread_known = process_freedom + processes - 1
    deviations = medians - each(total(medians) / processes)
    excess = total(deviations**2) / np.maximum(processes - 1, 1) - total(variances) / processes
    between = process_freedom * process_sd**2 + (processes - 1) * np.maximum(excess, 0)
    between /= spread_known
    freedoms = _FREEDOM_OF_ROUNDS * np.cbrt(rounds)
    pooled = each(total(freedoms * variances * rounds) / total(freedoms)) / rounds
    shrunk = (freedoms * variances + _FREEDOM_OF_POOLED * pooled) / (freedoms + _FREEDOM_OF_POOLED)
    weights = 1 / (each(between) + shrunk)
    weights /= each(total(weights))
    of_processes, of_rounds = total(weights**2) * between, total(weights**2 * variances)
    freedom = _pooled_freedom(of_processes, spread_known, of_rounds, total(freedoms))
    errors = np.sqrt(of_processes + of_rounds)
    return zip(total(weights * medians).tolist(), errors.tolist(), freedom.tolist(), strict=True)


def _ratio(
    series: Sequence[NDArray[np.float64]],
    log: float | None = None,
    error: float | None = None,
    freedom: float = 0.0,
) -> Ratio:
    """A paired ratio; its value is the median of all rounds where no process has an error."""
    value = float(median(np.concatenate(series))) if log is None else log
    rounds = sum(len(values) for values in series)
    return Ratio(math.exp(value), error, freedom, rounds, len(series), paired=True)


def stacked(
    series: Sequence[NDArray[np.float64]],
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float64]]]:
    """Series of one length as rows of an array, (series, length), after their places among all."""
    lengths = np.array([len(values) for values in series])
    for length in set(lengths.tolist()):
        places = np.flatnonzero(lengths == length)
        yield places, np.array([series[place] for place in places.tolist()])


def _pooled_freedom(
    one: NDArray[np.float64],
    one_freedom: NDArray[np.floating],
    other: NDArray[np.float64],
    other_freedom: NDArray[np.floating],
) -> NDArray[np.float64]:
    """Satterthwaite's degrees of freedom of a sum of two independent estimates of variances."""
    found: NDArray[np.float64] = (one + other) ** 2 / (
        one**2 / one_freedom + other**2 / other_freedom
    )
    return found


def unpaired(
    above: Sequence[NDArray[np.float64]], below: Sequence[NDArray[np.float64]]
) -> Ratio | None:
    """Ratio of step times of two runs, nothing of which happened side by side.

    Args:
      above: log seconds a step in one run, an array a worker process with one value a round.
      below: the same in the other run.

    Each run's value is `estimate`'s mean over its processes, and each has an error of its own. That
    error is not the mean's. Processes of one run share its hour (the neighbours, the clock rate,
    the machine the guest was put on), so they may agree with one another and all be off together;
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


def apart(
    above: Sequence[NDArray[np.float64]], below: Sequence[NDArray[np.float64]]
) -> Ratio | None:
    """Ratio of step times of two blocks of one run, whose launches take turns.

    Args:
      above: log seconds a step in one block, an array a worker process with one value a round.
      below: the same in the other block.

    Nothing happened side by side, but processes of both are of the same hour, in random order: what
    they differ by, assumed as UNPAIRED_SD and corrected by their own spread, averages out over
    them, unlike between runs (`unpaired`). None where either has no samples.
    """
    if not above or not below:
        return None
    one, other = (estimate(series, UNPAIRED_SD, UNPAIRED_FREEDOM) for series in (above, below))
    return replace(quotient(one, other, UNPAIRED_FREEDOM), paired=False)


def _of_its_hour(series: Sequence[NDArray[np.float64]]) -> Ratio:
    """Seconds a step in a run, with the error of `unpaired`."""
    mean = estimate(series, UNPAIRED_SD, UNPAIRED_FREEDOM)
    if mean.error is None:
        return mean
    error = max(UNPAIRED_SD, math.sqrt(mean.launches) * mean.error)
    return replace(mean, error=error, freedom=UNPAIRED_FREEDOM)


def quotient(above: Ratio, below: Ratio, shared: float = PROCESS_FREEDOM) -> Ratio:
    """Ratio of two runs' ratios, with the errors u and v of their logarithms in quadrature.

    The degrees of freedom are Satterthwaite's (Biometrics Bulletin 2 (1946), 110) with a covariance
    of the two variances: both contain the same constant, an estimate of `shared` degrees of
    freedom, and are too small or too large together. With a and b degrees of freedom each,

        (u^2 + v^2)^2 / (u^4 / a + v^4 / b + 2 u^2 v^2 shared / (a b)),

    which is Welch's where nothing is shared, and `shared` where there is nothing else. Without an
    error where either has none. Rounds and launches are the fewer ones.
    """
    value, error, freedom = above.value / below.value, None, 0.0
    if above.error is not None and below.error is not None:
        one, other = above.error**2, below.error**2
        error = math.sqrt(one + other)
        common = 2 * one * other * shared / (above.freedom * below.freedom)
        freedom = (one + other) ** 2 / (one**2 / above.freedom + other**2 / below.freedom + common)
    return Ratio(
        value,
        error,
        freedom,
        min(above.rounds, below.rounds),
        min(above.launches, below.launches),
        paired=above.paired and below.paired,
    )


def median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """np.median along the last axis of series without gaps, in a fifth of the time."""
    count = values.shape[-1]
    ordered = np.sort(values)
    middle: NDArray[np.float64] = ordered[..., (count - 1) // 2] + ordered[..., count // 2]
    return middle / 2


def median_variance(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Variance of the median of series whose values may depend on their neighbours.

    From the width of the sign test's interval, which assumes no distribution (McKean and Schrader,
    Communications in Statistics 13 (1984), 751), times the inflation by autocorrelation. The
    interval is that at 95 %, which reaches into the tails: where they are heavy, as on contended
    hosts, the error comes out about a tenth too large; nearer to the median it would be less
    biased, but of few rounds so uncertain that verdicts were wrong more often. None where there
    are too few values for an interval.

    Args:
      values: (..., rounds); as in all that follows, each series along the last axis by itself.
    """
    interval = median_interval(values)
    if interval is None:
        return None
    low, high, confidence = interval
    error = (high - low) / 2 / -float(special.ndtri((1 - confidence) / 2))
    return error**2 * inflation(values)


def inflation(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Factor on the variance of a median by the dependence of neighbouring values; at least 1.

    The larger of two estimates from the autocorrelations r_k of the signs of the deviations from
    the median, on whose dependence a median's variance depends. 1 + 2 sum_k (1 - k / (b + 1)) r_k
    with Bartlett's weights and b = n^(1/3) lags (Newey and West, Econometrica 55 (1987), 703)
    assumes nothing of how the dependence fades, and misses what fades later than that;
    (1 + r_1) / (1 - r_1), that of a first-order autoregression, does not. Of two values at least.
    """
    count = values.shape[-1]
    signs = np.sign(values - median(values)[..., np.newaxis])
    power = np.maximum((signs**2).sum(axis=-1), 1)  # no sign, no correlation
    lags = int(math.cbrt(count) + 1e-9)
    found = [
        (signs[..., lag:] * signs[..., :-lag]).sum(axis=-1) / power for lag in range(1, lags + 1)
    ]
    weighted = 1 + 2 * sum((1 - lag / (lags + 1)) * r for lag, r in enumerate(found, start=1))
    first = np.minimum(found[0] * count / (count - 1), _LARGEST_AUTOCORRELATION)
    larger: NDArray[np.float64] = np.maximum(weighted, (1 + first) / (1 - first))
    return np.maximum(larger, 1)


def median_interval(
    values: NDArray[np.float64], confidence: float = CONFIDENCE
) -> tuple[NDArray[np.float64], NDArray[np.float64], float] | None:
    """Interval for the median between two order statistics, and its exact confidence.

    With n values sorted as x[1] .. x[n], the count of values below the median is Binomial(n, 1/2),
    so [x[k], x[n+1-k]] misses it with probability 2 P(Binomial <= k-1), whatever the distribution.
    The largest k that keeps this at or under 1 - confidence is taken (David and Nagaraja, Order
    Statistics, 3rd ed., 7.1). None where even the extremes are not enough: under 6 values at 95 %.
    """
    depth, exact = _depth(values.shape[-1], confidence)
    if depth == 0:
        return None
    ordered = np.sort(values)
    return ordered[..., depth - 1], ordered[..., -depth], exact


@cache
def _depth(count: int, confidence: float = CONFIDENCE) -> tuple[int, float]:
    """K of `median_interval`, 0 where there is none, and its exact confidence."""
    below = special.bdtr(np.arange(count // 2 + 1), count, 0.5)
    depth = int(np.searchsorted(below, (1 - confidence) / 2, "right"))
    return depth, 1 - 2 * float(below[depth - 1]) if depth else 0.0


def noise_floor(rounds: Rounds, baseline: str) -> Ratio | None:
    """Ratio of two copies of the same program; what it differs from 1 by is the method's error."""
    return ratio(rounds, TWIN, baseline)


def floor_width(floor: Ratio) -> float:
    """Largest |log ratio| that the A/A comparison admits; about a relative difference."""
    return max(abs(math.log(end)) for end in (floor.value, floor.low, floor.high) if end)
