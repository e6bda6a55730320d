"""Asks for more host memory than this process may have."""

from __future__ import annotations

import resource

import numpy as np
from jax.sharding import Mesh

from bench.contract import Problem, TrainStep
from bench.trials.faults.planted import good
from bench.trials.faults.planted.good import why_unsupported

__all__ = ["build", "why_unsupported"]


def build(problem: Problem, mesh: Mesh) -> TrainStep:
    """An array of 64 GiB, under a limit of the address space that leaves 1 GiB."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        np.ones(1 << 33)
    finally:  # the limit is the whole process's, and others are measured in it
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return good.build(problem, mesh)
