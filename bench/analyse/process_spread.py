"""Spread of ratios between worker processes that run the same programs.

Memory layout and thread placement differ between processes and stay fixed within one, so no number
of rounds in a single process reveals their effect. The spread grows with the number of devices,
whose threads may be placed in more ways, so it is estimated for each number by itself.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.analyse.sample_rounds import Rounds
from bench.analyse.signed_rank import estimated
from bench.records.arms import TWIN, is_ablated
from bench.records.grouping import grouped

Series = Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class ProcessSpread:
    """Standard deviation of log ratios between worker processes, beyond the noise of rounds."""

    sd: float
    freedom: float
    """Degrees of freedom of `sd`."""


PROCESS = ProcessSpread(0.0035, 11)
"""The prior, until runs with several launches measure the spread: in 64 processes of self-tests,
the even and the odd rounds of equal copies of a step agreed on differences of this size."""

TWO_PROCESSES = ProcessSpread(0.026, 11)
"""The prior for two arms, at least one of which has a process of its own: docs/design/verdicts.md
has the launches behind it."""

_SHARED = 0.25
"""Squared correlation of two arms' ratios to one baseline, whose own variation is in both."""

_FEWEST_ROUNDS = 8
_PASSES = 20

_PLACES = ("", " in two processes")
"""Suffixes of the two spreads' keys in a manifest, after the number of devices."""


@dataclass(frozen=True)
class Spreads:
    """The spreads of a block's ratios between launches.

    The arms of one worker share its memory and threads. An arm with a process of its own has its
    own, so its ratios to the others differ more from launch to launch.
    """

    one_process: ProcessSpread = PROCESS
    two_processes: ProcessSpread = TWO_PROCESSES
    apart: frozenset[str] = frozenset()

    def between(self, arm: str, other: str) -> ProcessSpread:
        """Return the spread of the ratio of two arms."""
        return self.one_process if self.apart.isdisjoint((arm, other)) else self.two_processes

    def updated(self, blocks: Iterable[tuple[Sequence[Series], Sequence[Series]]]) -> Self:
        """Return the spreads that blocks on equally many devices show, with these as the priors.

        `blocks` has the result of `log_ratios` for each block, of which there is at least one.
        """
        one, two = zip(*blocks, strict=True)
        one_process, two_processes = pooled(one, self.one_process), pooled(two, self.two_processes)
        return replace(self, one_process=one_process, two_processes=two_processes)

    def stored(self, devices: int) -> dict[str, dict[str, float]]:
        """Return a manifest's entries for blocks on so many devices; see `known`."""
        one, two = (f"{devices}{place}" for place in _PLACES)
        return {one: asdict(self.one_process), two: asdict(self.two_processes)}


ASSUMED = Spreads()
"""Nothing but the priors."""


def log_ratios(rounds: Rounds, apart: Collection[str]) -> tuple[list[Series], list[Series]]:
    """Return log ratios of arms to the one with most rounds: of pairs in one process, and in two.

    Each arm has one array per launch, with a value per round; with a single launch, there are no
    arms. `apart` are the arms with processes of their own.
    """
    turns = dict(zip(rounds.arms, np.isfinite(rounds.throughput).sum(axis=0), strict=True))
    # The reference is an arm of the worker, if there is one, so that both spreads are seen.
    whole = sorted(
        (arm for arm in turns if not is_ablated(arm)), key=lambda arm: (arm in apart, -turns[arm])
    )
    several = len(set(rounds.attempt.tolist())) > 1
    opponents = dict.fromkeys(whole[1:], whole[0]) if several and whole else {}
    one: list[Series] = []
    two: list[Series] = []
    for arm, series in rounds.paired(opponents).items():
        (two if {arm, opponents[arm]} & set(apart) else one).append(series)
    return one, two


def with_twin(apart: Iterable[str], baseline: str) -> set[str]:
    """Return the arms with processes of their own, among them the twin if its baseline is one."""
    found = {*apart}
    return found | {TWIN} if baseline in found else found


def known(earlier: Mapping[str, Any] | None, devices: int, apart: Iterable[str] = ()) -> Spreads:
    """Return the spreads that a run assumed at its start for blocks on so many devices.

    They are the priors unless an earlier run had such a block: `earlier` has what `Spreads.stored`
    returned; in old manifests, one spread for all blocks. `apart` are the arms with processes of
    their own.
    """
    if earlier and "sd" in earlier:
        earlier = {str(devices): earlier}
    one, two = ((earlier or {}).get(f"{devices}{place}") for place in _PLACES)
    return Spreads(
        ProcessSpread(**one) if one else PROCESS,
        ProcessSpread(**two) if two else TWO_PROCESSES,
        frozenset(apart),
    )


def pooled(blocks: Iterable[Iterable[Series]], prior: ProcessSpread = PROCESS) -> ProcessSpread:
    """Return the spread between processes, pooled over all blocks of a run and the prior.

    `blocks` has the log ratios of each arm of each block, one array per process. The prior is
    weighted like an estimate with its degrees of freedom.

    Within an arm, the medians of n processes vary by s^2 and by the noise v of their rounds, so
    that MS - v, with MS their mean square, estimates s^2: the moment estimator of DerSimonian and
    Laird (Controlled Clinical Trials 7 (1986), 177). Its variance is about 2 (s^2 + v)^2 / d with d
    degrees of freedom. All estimates and the prior are averaged with inverse-variance weights;
    these depend on s^2, so the average is iterated. Launches on a noisy host therefore have next to
    no weight, and those on a quiet one nearly their full weight. The k arms of a block share their
    baseline, so they count like k / (1 + (k - 1) / 4) independent ones.
    """
    shown = []
    for block in blocks:
        arms = [found for series in block if (found := _spread_of_arm(series)) is not None]
        weight = 1 / (1 + (len(arms) - 1) * _SHARED)
        shown += [(square, noise, freedom * weight) for square, noise, freedom in arms]
    if not shown:
        return prior
    mean_squares, noise, own = np.array(shown).T
    least = prior.sd**2 / 4  # the moment estimator may be negative
    variance = prior.sd**2
    for _ in range(_PASSES):
        counts = own * (variance / (variance + noise)) ** 2
        total = prior.freedom + float(counts.sum())
        estimate = (prior.freedom * prior.sd**2 + counts @ (mean_squares - noise)) / total
        variance = max(float(estimate), least)
    return ProcessSpread(float(np.sqrt(variance)), float(total))


def by_devices(
    blocks: Iterable[tuple[int, Rounds, Collection[str]]], earlier: Mapping[str, Any] | None = None
) -> dict[int, Spreads]:
    """Return the spreads for each number of devices; `earlier` is as in `known`.

    `blocks` has each block's number of devices, its rounds, and its arms with processes of their
    own, which the result leaves empty. Blocks that were timed in several launches show the spread.
    """
    shown = grouped((devices, log_ratios(rounds, own)) for devices, rounds, own in blocks)
    return {count: known(earlier, count).updated(own) for count, own in shown.items()}


def _spread_of_arm(series: Series) -> tuple[float, float, float] | None:
    """Return the mean square of an arm's processes, its noise and its degrees of freedom."""
    long = [values for values in series if len(values) >= _FEWEST_ROUNDS]
    if len(long) < 2:  # noqa: PLR2004
        return None
    locations, errors = np.transpose([estimated(values) for values in long])
    return float(np.var(locations, ddof=1)), float(np.mean(errors**2)), len(long) - 1.0
