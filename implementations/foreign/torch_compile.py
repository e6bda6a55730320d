"""PyTorch with torch.compile, in a process of its own: the forward and backward pass are compiled.

TorchInductor compiles one graph of the model with its loss and another of its gradients; the fused
optimizer is one more kernel. Nothing is communicated: one process computes the whole batch. On CPU,
it runs as many threads as the mesh has devices.
"""

from __future__ import annotations

import atexit
import os
from tempfile import TemporaryDirectory
from typing import Any

# Read when Inductor is imported: compiling on this thread leaves no pool of processes at work.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

import torch

from implementations.foreign import torch_eager
from implementations.foreign._torch_models import Step, loss_of, make_model

FOREIGN = {"packages": ["torch"]}

why_unsupported = torch_eager.why_unsupported


def build(problem: Any) -> Step:
    torch.compiler.reset()  # drops graphs compiled for a float64 proof
    if problem.timed:  # a warm cache would hide the compile time
        fresh = TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = fresh.name
        atexit.register(fresh.cleanup)
    return Step(problem, make_model(problem), torch.compile(loss_of, fullgraph=True))
