"""Spread of ratios between worker processes that run the same programs.

Memory layout and thread placement differ between processes and stay fixed within one, so no number
of rounds in a single process reveals their effect. The spread grows with the number of devices,
whose threads may be placed in more ways, so it is estimated for each number by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.analyse.sample_rounds import Rounds
from bench.analyse.signed_rank import estimated, stacked
from bench.records.arms import is_ablated

Series = Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class ProcessSpread:
    """Standard deviation of log ratios between worker processes, beyond the noise of rounds."""

    sd: float
    freedom: float
    """Degrees of freedom of `sd`."""


PROCESS = ProcessSpread(0.002, 11)
"""The prior, until runs with several launches measure the spread: from twelve fresh processes of
one program on a shared two-core host, whose ratios ranged from -0.4 to +0.7 %."""

_SHARED = 0.25
"""Squared correlation of two arms' ratios to one baseline, whose own variation is in both."""

_FEWEST_ROUNDS = 8
_PASSES = 20


def known(earlier: Mapping[str, Any] | None, devices: int) -> ProcessSpread:
    """Return the spread that a run assumed at its start for blocks on so many devices.

    Args:
      earlier: `sd` and `freedom` by number of devices, from earlier runs; in old manifests, one of
        each for all blocks.
      devices: the number of a block's devices.

    Returns:
      PROCESS unless an earlier run had such a block.
    """
    found = earlier if not earlier or "sd" in earlier else earlier.get(str(devices))
    return ProcessSpread(found["sd"], found["freedom"]) if found else PROCESS


def pooled(blocks: Iterable[Iterable[Series]], prior: ProcessSpread = PROCESS) -> ProcessSpread:
    """Return the spread between processes, pooled over all blocks of a run and the prior.

    Args:
      blocks: for each block, the log ratios of each of its arms, one array per process.
      prior: weighted like an estimate with its degrees of freedom.

    Within an arm, the medians of n processes vary by s^2 and by the noise v of their rounds, so
    that MS - v, with MS their mean square, estimates s^2: the moment estimator of DerSimonian and
    Laird (Controlled Clinical Trials 7 (1986), 177). Its variance is about 2 (s^2 + v)^2 / d with d
    degrees of freedom. All estimates and the prior are averaged with inverse-variance weights;
    these depend on s^2, so the average is iterated. Launches on a noisy host therefore have next to
    no weight, and those on a quiet one nearly their full weight. The k arms of a block share their
    baseline, so they count like k / (1 + (k - 1) / 4) independent ones.
    """
    squares, noises, freedoms = [], [], []
    for block in blocks:
        arms = [found for series in block if (found := _spread_of_arm(series)) is not None]
        for mean_square, of_rounds, freedom in arms:
            squares.append(mean_square)
            noises.append(of_rounds)
            freedoms.append(freedom / (1 + (len(arms) - 1) * _SHARED))
    if not squares:
        return prior
    mean_squares, noise, own = (np.array(figures) for figures in (squares, noises, freedoms))
    least = prior.sd**2 / 4  # the moment estimator may be negative
    variance = prior.sd**2
    for _ in range(_PASSES):
        counts = own * (variance / (variance + noise)) ** 2
        total = prior.freedom + float(counts.sum())
        estimate = (prior.freedom * prior.sd**2 + counts @ (mean_squares - noise)) / total
        variance = max(float(estimate), least)
    return ProcessSpread(float(np.sqrt(variance)), float(total))


def by_devices(
    blocks: Iterable[tuple[int, Rounds]], earlier: Mapping[str, Any] | None = None
) -> dict[int, ProcessSpread]:
    """Return the spread for each number of devices.

    Args:
      blocks: each block's number of devices, and its rounds. Those whose arms were all timed in
        several processes show the spread.
      earlier: what earlier runs showed; see `known`.
    """
    series: dict[int, list[Iterable[Series]]] = {}
    for devices, rounds in blocks:
        whole = [arm for arm in rounds.arms if not is_ablated(arm)]
        several = whole and len(set(rounds.attempt.tolist())) > 1
        opponents = dict.fromkeys(whole[1:], whole[0]) if several else {}
        series.setdefault(devices, []).append(rounds.paired(opponents).values())
    return {count: pooled(found, known(earlier, count)) for count, found in series.items()}


def _spread_of_arm(series: Series) -> tuple[float, float, float] | None:
    """Return the mean square of an arm's processes, its noise and its degrees of freedom."""
    long = [values for values in series if len(values) >= _FEWEST_ROUNDS]
    if len(long) < 2:  # noqa: PLR2004
        return None
    locations, errors = np.empty((2, len(long)))
    for places, values in stacked(long):
        locations[places], errors[places] = estimated(values)
    return float(np.var(locations, ddof=1)), float(np.mean(errors**2)), len(long) - 1.0
