"""A run whose processes a launcher has started: mpirun, srun, Kubernetes, torchrun, or a person.

Every process runs the same command. That of rank 0 leads: it plans, proves, times, stores and
reports. The others follow: they start the worker that rank 0 asks for, on their own host, and pass
on what it says. The workers of a launch then find one another by jax.distributed. Imports no jax.

Leader and followers speak JSON over connections of the standard library's multiprocessing, which
are authenticated by a token; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, cast

from bench.distributed import DistributedConfig, DistributedConfigError
from bench.environment import child_environment
from bench.host import host_id, usable_cores
from bench.hosts import Hear, Order, start_process
from bench.processes import LocalProcess, Process, free_port
from bench.protocol import Job, Meeting
from bench.variants import Variant

RENDEZVOUS = (sys.executable, "-m", "bench.worker.rendezvous")
COME_S = 300.0
"""All processes must have come within so long."""
RETRY_S = 0.5

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


class ClusterError(Exception):
    """The processes do not find one another; the message says what is missing."""


@dataclass(frozen=True)
class Membership:
    """Which process of a run this is, and where its rank 0 listens."""

    rank: int
    processes: int
    address: str
    port: int
    token: bytes
    listener: Listener | None = None
    """Of rank 0, if it listens already."""


def membership(how: str) -> Membership:
    """Find out which process of a run this is.

    Args:
      how: `auto` (by the variables MASTER_ADDR, WORLD_SIZE and RANK where they are set, else by
        jax's own detection), `env` (by the variables alone), or a TOML file of a DistributedConfig.

    Raises:
      ClusterError: that cannot be found out.
      DistributedConfigError: the variables or the file are wrong.
    """
    if how == "auto" and not {"MASTER_ADDR", "WORLD_SIZE", "RANK"} <= os.environ.keys():
        return _detected()
    if how in ("auto", "env"):
        config = DistributedConfig.from_environment()
    else:
        config = read_config(Path(how))
    return Membership(
        rank=config.rank,
        processes=config.world_size,
        address=config.master_addr,
        port=config.master_port,
        token=os.environ.get("LOCKSTEP_TOKEN", "lockstep").encode(),
    )
