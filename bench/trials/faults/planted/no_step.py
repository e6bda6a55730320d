"""Builds nothing."""

from __future__ import annotations

from jax.sharding import Mesh

from bench.contract import Problem
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> None:
    """No step at all."""
    del problem, mesh
