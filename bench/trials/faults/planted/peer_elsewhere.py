"""One of two processes is in a collective that the other never comes to."""

from __future__ import annotations

from jax.experimental import multihost_utils
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import peers
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, in the process of rank 0."""

    def go_wrong() -> None:
        multihost_utils.sync_global_devices("nobody else is here")

    return peers.in_rank_1(problem, mesh, go_wrong)
