"""Prints, as JSON, which of a cluster's processes this is, and where its rank 0 is reached.

Reads the port of this process's front from stdin. jax's own detection (Slurm, Open MPI, Kubernetes
and others: see jax.distributed.initialize) says who is who; the processes meet once, on CPU devices
alone, and part again. A process of its own: the front stays free of jax, and of devices.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys

import jax

from bench.protocol import Meeting
from bench.worker import peers


def meet(port: int) -> Meeting:
    """Meet the other processes.

    Raises:
      ValueError, RuntimeError: jax detects no cluster, or the others do not come.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(cluster_detection_method=os.environ.get("LOCKSTEP_DETECTION"))
    address = socket.gethostbyname(socket.gethostname())
    mine = {"address": address, "port": port, "token": secrets.token_hex(16)}
    main = peers.of_main(mine)
    return Meeting(
        rank=jax.process_index(),
        processes=jax.process_count(),
        address=str(main["address"]),
        port=int(str(main["port"])),
        token=str(main["token"]),
    )


if __name__ == "__main__":
    asked = int(sys.stdin.readline())
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # gloo greets
    found = meet(asked)
    with os.fdopen(answer, "w") as file:
        json.dump(found, file)
