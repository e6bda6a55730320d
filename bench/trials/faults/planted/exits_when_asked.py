"""Calls sys.exit when it is asked whether it is supported."""

from __future__ import annotations

import sys
from typing import NoReturn

from jax.sharding import Mesh

from bench.contract import Problem
from bench.trials.faults.planted.good import build

__all__ = ["build", "why_unsupported"]


def why_unsupported(problem: Problem, mesh: Mesh) -> NoReturn:
    """Does not come back."""
    del problem, mesh
    sys.exit(3)
