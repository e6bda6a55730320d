"""PyTorch's FSDP2 (fully_shard): one process per device, which holds a shard of each parameter.

Block by block, parameters are all-gathered before use and gradients are reduce-scattered. Each
process updates its own shards. gloo communicates on CPU, NCCL on GPU. Autocast rounds parameters to
bfloat16 after they are gathered, so all-gathers move float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from implementations.foreign import _torch_models
from implementations.foreign._torch_models import Step, make_model
from implementations.foreign.torch_ddp import DistributedStep, join

FOREIGN = {"packages": ["torch"], "per_device": True}

why_unsupported = _torch_models.why_unsupported


class FullyShardedStep(DistributedStep):
    """A step of a model whose parameters are sharded."""

    def exchanging(self, last: bool) -> AbstractContextManager[Any]:
        self.model.set_requires_gradient_sync(last)
        return nullcontext()


def build(problem: Any) -> Step:
    join(problem)
    model = make_model(problem)
    kind = "cuda" if problem.platform == "gpu" else "cpu"
    mesh = dist.device_mesh.init_device_mesh(kind, (dist.get_world_size(),))
    for block in getattr(model, "blocks", getattr(model, "layers", ())):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return FullyShardedStep(problem, model)
