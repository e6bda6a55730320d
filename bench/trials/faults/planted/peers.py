"""One of two processes goes wrong in its first step, and the other waits for it."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import moment


def in_rank_1(problem: Problem, mesh: Mesh, go_wrong: Callable[[], None]) -> TrainStep:
    """The right step, but that the process of rank 1 goes wrong."""

    def fault() -> None:
        if jax.process_index() == 1:
            moment.injected()
            go_wrong()

    return moment.in_step(problem, mesh, fault)
