"""Loops for ever in C, holding Python's global lock, while it is built."""

from __future__ import annotations

from collections import deque
from itertools import repeat

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """Does not come back."""
    moment.injected()
    deque(repeat(0), maxlen=0)
    return good.build(problem, mesh)
