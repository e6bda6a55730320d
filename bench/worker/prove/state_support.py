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
    if hasattr(implementation, "FOREIGN"):
        return "it runs in processes of its own, which carry no model state"
    if not known:
        return (
            f"it carries no model state, and this model has {', '.join(names[:FEW])}{more} beside "
            "its parameters"
        )
    if problem.microbatches > 1:
        return "model state is not defined for several microbatches a step"
    shards = math.prod(mesh.shape[axis] for axis in batch_axes(mesh))
    if shards > 1 and problem.statistics not in known:
        declared = "of the global batch" if problem.statistics == SYNCHRONIZED else "of each shard"
        return (
            f"the workload declares {problem.statistics} statistics, {declared}, and this step "
            f"computes {' and '.join(known)} ones only"
        )
    return ""
