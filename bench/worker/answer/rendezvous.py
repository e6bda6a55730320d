"""Prints this process's rank in its cluster, and the address where rank 0 listens, as JSON.

Each process reads from stdin the address on which it would listen. jax's own detection (Slurm, Open
MPI, Kubernetes and others: see jax.distributed.initialize) determines the ranks. The processes
connect once, with only CPU devices, and disconnect. This runs in its own process, so that the
caller needs neither jax nor devices.
"""

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
    """Connect with the other processes, and exchange addresses.

    Raises:
      ValueError, RuntimeError: jax detects no cluster, or the others do not connect.
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
    """Broadcast the text of the process of rank 0."""
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
