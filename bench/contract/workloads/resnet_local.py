"""resnet with local statistics: each shard of a batch is normalized by itself.

No device waits for the others within the forward pass, as in PyTorch's DistributedDataParallel
without SyncBatchNorm. The result depends on the number of shards: with few samples a shard, the
statistics are noisy. In every step, running averages are averaged over all shards.
"""

from dataclasses import replace

from bench.contract import Problem
from bench.contract.model_state import LOCAL
from bench.contract.workloads import resnet

SIZES = resnet.SIZES
DEFAULT_SIZE = resnet.DEFAULT_SIZE


def problem(config: resnet.Config, batch_size: int, precision: str, remat: str = "") -> Problem:
    """Return resnet's problem, with local statistics."""
    return replace(resnet.problem(config, batch_size, precision, remat), statistics=LOCAL)
