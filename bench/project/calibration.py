"""How steps use what a machine has at best: fitted to measured ones, and tried on those left out.

Imports no jax.

Three figures are fitted: the share of the best matrix products that a step's products reach (one
for all, and one for each implementation where several were measured), the share of communication
that is not hidden though it could be, and what a step takes beside. Each has a wide prior, so that
what the measured steps do not tell stays what it is assumed to be, and the fit is defined for any
number of them.

How well that predicts is measured by leaving out: each group of steps (a mesh, a chip) in turn is
predicted from the others. Steps of a group err alike, so that a group counts once, by its root mean
square error of log step time. A new group is taken to err like these: 95 % of t-distributed errors
with as many degrees of freedom as groups were left out lie within t times their root mean square.
That of two groups or fewer is no interval, and the spread is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from bench.project.step_model import Calibration, Work

SHARE, SHARE_WIDTH = 0.6, 0.4
"""Prior of a share, and its standard deviation in logs: 0.27 to 1.34 hold 95 %, of which what is
over 1 is cut off."""
EXPOSED, EXPOSED_WIDTH = 0.5, 0.5
"""Prior of what is not hidden: anything from nothing to all."""
OVERHEAD_S, OVERHEAD_WIDTH = 50e-6, 1.5
"""Prior of what a step takes beside, and its standard deviation in logs: 2.5 us to 1 ms."""
NOISE = 0.05
"""Of a measured step in logs, against which priors weigh."""
LEAST_GROUPS = 3
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Observation:
    """A step that was measured."""

    work: Work
    seconds: float
    group: str
    """What is left out together."""


@dataclass(frozen=True)
class Tried:
    """A measured step beside what the others predict for it."""

    observation: Observation
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_s / self.observation.seconds - 1

    @property
    def log_error(self) -> float:
        """The same in logs."""
        return math.log(self.predicted_s / self.observation.seconds)


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and what it was tried on."""

    calibration: Calibration
    tried: tuple[Tried, ...]
    """One for each observation; empty where there is one group alone."""

    @property
    def errors(self) -> dict[str, float]:
        """Root mean square of the log error, by group that was left out."""
        groups: dict[str, list[float]] = {}
        for one in self.tried:
            groups.setdefault(one.observation.group, []).append(one.log_error)
        return {group: _rms(errors) for group, errors in groups.items()}


def calibrate(observations: Sequence[Observation]) -> Calibrated:
    """Fit to all, and leave out each group in turn to see how far that errs.

    Raises:
      ValueError: there are no observations.
    """
    groups = list(dict.fromkeys(one.group for one in observations))
    tried: list[Tried] = []
    for group in groups if len(groups) > 1 else ():
        others = fit([one for one in observations if one.group != group])
        tried += [Tried(one, one.work.step_s(others)) for one in observations if one.group == group]
    return judged(fit(observations), tried)


def judged(fitted: Calibration, tried: Sequence[Tried]) -> Calibrated:
    """A calibration with the spread of what was tried."""
    found = Calibrated(fitted, tuple(tried))
    return replace(found, calibration=replace(fitted, spread=spread(list(found.errors.values()))))


def spread(errors: Sequence[float]) -> float | None:
    """Half the width of a 95 % interval of log step time, from errors of groups left out.

    None for fewer than three: t of 1 or 2 degrees of freedom is no statement about a step.
    """
    if len(errors) < LEAST_GROUPS:
        return None
    return float(student.ppf((1 + CONFIDENCE) / 2, len(errors))) * _rms(errors)


def fit(observations: Sequence[Observation]) -> Calibration:
    """The calibration under which measured steps are most likely, its spread left open.

    Least squares of log step times over NOISE, and of the figures over their priors' widths; of
    what is far off, its size (soft L1), so that one model unlike the others does not move them. An
    implementation's share is drawn towards that of all. No share is over 1.

    Raises:
      ValueError: there are no observations.
    """
    if not observations:
        raise ValueError("nothing was measured that a calibration could be fitted to")
    names = sorted({one.work.program.implementation for one in observations})
    own = names if len(names) > 1 else []
    measured = np.log([one.seconds for one in observations])

    def calibration(figures: np.ndarray) -> Calibration:
        share, exposed, overhead, *others = figures.tolist()
        return Calibration(
            math.exp(share),
            exposed,
            math.exp(overhead),
            None,
            {name: math.exp(of_own) for name, of_own in zip(own, others, strict=True)},
        )

    def residuals(figures: np.ndarray) -> np.ndarray:
        found = calibration(figures)
        times = [one.work.step_s(found) for one in observations]
        share, exposed, overhead, *others = figures
        return np.array(
            [
                *(np.log(times) - measured) / NOISE,
                (share - math.log(SHARE)) / SHARE_WIDTH,
                (exposed - EXPOSED) / EXPOSED_WIDTH,
                (overhead - math.log(OVERHEAD_S)) / OVERHEAD_WIDTH,
                *((of_own - share) / SHARE_WIDTH for of_own in others),
            ]
        )

    shares = [math.log(SHARE)] * len(own)
    start = np.array([math.log(SHARE), EXPOSED, math.log(OVERHEAD_S), *shares])
    low = np.full_like(start, -np.inf)
    high = np.full_like(start, 0.0)
    low[1], high[1], high[2] = 0.0, 1.0, np.inf
    return calibration(least_squares(residuals, start, bounds=(low, high), loss="soft_l1").x)


def _rms(errors: Sequence[float]) -> float:
    return math.sqrt(sum(error**2 for error in errors) / len(errors))
