"""Calls sys.exit(0) in its first step."""

from __future__ import annotations

import sys

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, but for that."""

    def go_wrong() -> None:
        sys.exit(0)

    return moment.in_step(problem, mesh, go_wrong)
