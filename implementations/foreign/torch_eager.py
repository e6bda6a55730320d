"""PyTorch, eager, in a process of its own: modules, autograd and a fused optimizer.

Python launches the operations one after another. Nothing is communicated: one process computes the
whole batch. On CPU, its operations run on as many threads as the mesh has devices.
"""

from __future__ import annotations

import math
from typing import Any

from implementations.foreign import _torch_models
from implementations.foreign._torch_models import Step, make_model

FOREIGN = {"packages": ["torch"]}


def why_unsupported(problem: Any) -> str | None:
    if problem.platform == "gpu" and math.prod(problem.mesh.values()) > 1:
        return "one process drives one GPU; torch_ddp and torch_fsdp2 have a process for each"
    return _torch_models.why_unsupported(problem)


def build(problem: Any) -> Step:
    return Step(problem, make_model(problem))
