"""Whether an implementation can carry the model state of a problem."""

from __future__ import annotations

import math
from typing import Any

from jax.sharding import Mesh

from bench.contract import Problem
from bench.contract.model_state import SYNCHRONIZED
from bench.contract.placement import batch_axes

FEW = 3
"""Most variables that a reason names."""


def why_state_unsupported(implementation: Any, problem: Problem, mesh: Mesh) -> str:
    """Return why an implementation cannot carry a problem's model state; empty if it can."""
    names = problem.state_names
    if not names:
        return ""
    known = getattr(implementation, "STATISTICS", ())
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    has = f"this model has {', '.join(names[:FEW])}{more} beside its parameters"
    if hasattr(implementation, "FOREIGN"):
        return f"it runs in a process of its own, which is given parameters alone, and {has}"
    if not known:
        return f"it carries no model state, and {has}"
    shards = math.prod(mesh.shape[axis] for axis in batch_axes(mesh))
    if shards > 1 and problem.statistics not in known:
        declared = "of the global batch" if problem.statistics == SYNCHRONIZED else "of each shard"
        return (
            f"the workload declares {problem.statistics} statistics, {declared}, and this step "
            f"computes {' and '.join(known)} ones only"
        )
    return ""
