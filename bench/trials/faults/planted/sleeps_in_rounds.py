"""Sleeps for ever in the timed rounds."""

from __future__ import annotations

import threading

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, until it is timed."""

    def sleep() -> None:
        moment.injected()
        threading.Event().wait()

    return moment.in_rounds(problem, mesh, sleep)
