"""PyTorch's DistributedDataParallel: one process per device, and an all-reduce of the gradients.

Every process has all parameters and its rows of the batch. Gradients are averaged in buckets, by
gloo on CPU and NCCL on GPU, overlapping with the backward pass. The loss is one more all-reduce.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from implementations.foreign import _torch_models
from implementations.foreign._torch_models import Step, make_model, params_of

FOREIGN = {"packages": ["torch"], "per_device": True}


why_unsupported = _torch_models.why_unsupported


def join(problem: Any) -> None:
    """Initialize the process group, once."""
    if not dist.is_initialized():
        if problem.platform == "cpu":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("nccl" if problem.platform == "gpu" else "gloo")


class DistributedStep(Step):
    """A step whose loss is averaged over the processes."""

    def __init__(self, problem: Any, model: Any) -> None:
        parts = (dist.get_world_size(), dist.get_rank())
        super().__init__(problem, model, parts=parts)

    def step(self, microbatches: list[list[Tensor]]) -> Tensor:
        loss = super().step(microbatches)
        dist.all_reduce(loss)
        return loss / self.count


class DataParallelStep(DistributedStep):
    """A step of DistributedDataParallel, which wraps the model."""

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self.model.no_sync()

    def params(self) -> dict[str, np.ndarray]:
        return params_of(self.model.module, self.problem.params)


def build(problem: Any) -> Step:
    join(problem)
    model = make_model(problem)
    return DataParallelStep(problem, DistributedDataParallel(model, gradient_as_bucket_view=True))
