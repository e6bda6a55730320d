"""Prints as JSON the rank of this process in its cluster, and where the process of rank 0 listens.

Each process reads from stdin where it would listen itself. jax's own detection (Slurm, Open MPI,
Kubernetes and others: see jax.distributed.initialize) gives the ranks. The processes meet once, on
CPU devices alone, and part again. This is a process of its own, so that the calling process needs
neither jax nor devices.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils

from bench.records.messages import Meeting
from bench.worker import event_stream

_LONGEST = 512


def meet(own: dict[str, str | int]) -> Meeting:
    """Meet the other processes.

    Raises:
      ValueError, RuntimeError: jax detects no cluster, or the others do not come.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(cluster_detection_method=os.environ.get("LOCKSTEP_DETECTION"))
    main = json.loads(from_main(json.dumps(own)))
    return Meeting(
        rank=jax.process_index(),
        processes=jax.process_count(),
        address=str(main["address"]),
        port=int(main["port"]),
        token=str(main["token"]),
    )


def from_main(text: str) -> str:
    """The text that the process of rank 0 has."""
    room = np.zeros(_LONGEST, np.uint8)
    room[: len(text)] = np.frombuffer(text.encode("ascii"), np.uint8)
    found = multihost_utils.broadcast_one_to_all(room)
    return bytes(found).rstrip(b"\0").decode()


def main(answer: TextIO) -> None:
    """Answer the request on stdin."""
    print(json.dumps(meet(json.loads(sys.stdin.readline()))), file=answer)
    jax.distributed.shutdown()


if __name__ == "__main__":
    event_stream.run(main)
