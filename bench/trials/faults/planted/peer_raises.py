"""One of two processes raises."""

from __future__ import annotations

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import peers
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, in the process of rank 0."""

    def go_wrong() -> None:
        raise RuntimeError("planted")

    return peers.in_rank_1(problem, mesh, go_wrong)
