"""The second process that builds it waits, until it is told to go on. Others do not."""

from __future__ import annotations

import os
import time
from pathlib import Path

from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good, moment
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]

_number = 0
"""Of this process among those that built it; 0 until it does."""


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """The right step, sooner or later."""
    global _number  # noqa: PLW0603
    if not _number:
        _number = moment.count("built")
        if _number == 2:  # noqa: PLR2004
            moment.injected()
            while not Path(os.environ[moment.FOLDER], "go").exists():
                time.sleep(0.05)
    return good.build(problem, mesh)
