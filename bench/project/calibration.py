"""Calibration: how well steps use a machine, fitted to measured steps and cross-validated.

The fit has three parameters: the share of the best matmul FLOP/s that a step's products reach (a
common one, and one for each implementation if several were measured), the share of hideable
communication that is not hidden, and a step's fixed overhead. Each has a wide prior, so the fit is
defined for any number of measured steps; the prior decides what they leave undetermined.

Cross-validation measures the error: each group of steps (a mesh, a chip) in turn is left out and
predicted from the others. Errors within a group are correlated, so a group counts once, with the
root mean square of its errors in log step time. Two groups or fewer give no interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import least_squares

from bench.analyse.ratio_intervals import CONFIDENCE, student
from bench.project.step_model import Calibration, Work
from bench.records.cells import Cell
from bench.records.grouping import grouped
from bench.records.mesh import MeshShape

SHARE, SHARE_WIDTH = 0.6, 0.4
"""Prior of a share, and its standard deviation in logs: 95 % lie within 0.27 to 1.34, which the fit
cuts off at 1."""
EXPOSED, EXPOSED_WIDTH = 0.5, 0.5
"""Prior of the exposed share: anything from nothing to all."""
OVERHEAD_S, OVERHEAD_WIDTH = 50e-6, 1.5
"""Prior of a step's overhead, and its standard deviation in logs: 2.5 us to 1 ms."""
NOISE = 0.05
"""Standard deviation of a measured log step time; it weights measurements against priors."""
LEAST_GROUPS = 3


@dataclass(frozen=True)
class Trial:
    """A measured step, and its time predicted without its group."""

    work: Work
    measured_s: float
    group: str
    """Cross-validation leaves out all steps of a group together."""
    predicted_s: float = math.nan
    """NaN if there is no other group."""

    @property
    def cell(self) -> Cell:
        """The cell of the step."""
        return self.work.program.cell

    @property
    def mesh(self) -> MeshShape:
        """The mesh of the step."""
        return self.cell.block.mesh

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s


@dataclass(frozen=True)
class Calibrated:
    """A calibration and its cross-validation."""

    fitted: Calibration
    tried: tuple[Trial, ...]

    @cached_property
    def errors(self) -> dict[str, float]:
        """Root mean square of the log errors of each left-out group."""
        known = [trial for trial in self.tried if math.isfinite(trial.predicted_s)]
        groups = grouped((trial.group, math.log(trial.ratio)) for trial in known)
        return {group: _rms(errors) for group, errors in groups.items()}

    @cached_property
    def calibration(self) -> Calibration:
        """The fitted calibration, with the spread of the errors."""
        return replace(self.fitted, spread=spread([*self.errors.values()]))


def calibrate(measured: Sequence[Trial]) -> Calibrated:
    """Fit all measured steps, and cross-validate the fit by leaving out each group in turn."""
    tried: list[Trial] = []
    for group in dict.fromkeys(one.group for one in measured):
        own = [one for one in measured if one.group == group]
        if others := [one for one in measured if one.group != group]:
            found = fit(others)
            own = [replace(one, predicted_s=one.work.step_s(found)) for one in own]
        tried += own
    return Calibrated(fit(measured), tuple(tried))


def spread(errors: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of log step time, by errors of left-out groups.

    None for fewer than three: with 1 or 2 degrees of freedom, the interval is uselessly wide.
    """
    if len(errors) < LEAST_GROUPS:
        return None
    return student(len(errors), 1 - CONFIDENCE) * _rms(errors)


def fit(trials: Sequence[Trial]) -> Calibration:
    """Return the most likely calibration, without its spread.

    Least squares of the log step times over NOISE, and of the parameters' deviations from their
    priors over the priors' widths. The loss is soft L1, so one outlying model does not dominate.
    The prior of an implementation's share is the common share. No share exceeds 1. Raises
    ValueError without trials.
    """
    if not trials:
        raise ValueError("nothing was measured, so there is nothing to fit")
    names = sorted({one.cell.implementation for one in trials})
    own = names if len(names) > 1 else []
    measured = np.log([one.measured_s for one in trials])
    prior = np.array([math.log(SHARE), EXPOSED, math.log(OVERHEAD_S)])
    widths = np.array([SHARE_WIDTH, EXPOSED_WIDTH, OVERHEAD_WIDTH])

    def calibration(figures: np.ndarray) -> Calibration:
        share, exposed, overhead, *others = figures.tolist()
        shares = dict(zip(own, map(math.exp, others), strict=True))
        return Calibration(math.exp(share), exposed, math.exp(overhead), None, shares)

    def residuals(figures: np.ndarray) -> np.ndarray:
        candidate = calibration(figures)
        errors = np.log([one.work.step_s(candidate) for one in trials]) - measured
        common, shares = figures[:3], figures[3:]
        deviations = (common - prior) / widths, (shares - common[0]) / SHARE_WIDTH
        return np.concatenate([errors / NOISE, *deviations])

    start = [*prior, *[prior[0]] * len(own)]
    low = [-np.inf, 0.0, -np.inf, *[-np.inf] * len(own)]
    high = [0.0, 1.0, np.inf, *[0.0] * len(own)]
    return calibration(least_squares(residuals, start, bounds=(low, high), loss="soft_l1").x)


def _rms(errors: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(errors))))
