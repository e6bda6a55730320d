"""Prints this process's rank in its cluster, and the address where rank 0 listens, as JSON.

Each process reads from stdin the address on which it would listen, and adds its rank and the number
of processes to what rank 0 has read, with the names of a DistributedConfig. jax's own detection
(Slurm, Open MPI, Kubernetes and others: see jax.distributed.initialize) determines the ranks. The
processes connect once, with only CPU devices, and disconnect.
"""

import json
import os

import jax
import numpy as np
from jax.experimental import multihost_utils

from bench.worker.event_stream import answer_requests

_LONGEST = 512
"""Bytes to which each process pads its address, because a broadcast needs equal shapes."""


def meet(own: dict[str, str | int]) -> dict[str, str | int]:
    """Connect with the others, and get rank 0's address; an error if jax detects no cluster."""
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(cluster_detection_method=os.environ.get("LOCKSTEP_DETECTION"))
    text = np.frombuffer(json.dumps(own).encode().ljust(_LONGEST), np.uint8)
    main: dict[str, str | int] = json.loads(bytes(multihost_utils.broadcast_one_to_all(text)))
    main |= {"rank": jax.process_index(), "world_size": jax.process_count()}
    jax.distributed.shutdown()
    return main


if __name__ == "__main__":
    answer_requests(meet)
