"""Reads from address 0 in the timed rounds."""

from __future__ import annotations

import ctypes

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, until it is timed."""

    def crash() -> None:
        moment.injected()
        ctypes.string_at(0)

    return moment.in_rounds(problem, mesh, crash)
