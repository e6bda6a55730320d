"""The environment of child processes: where they import from and how many devices they see."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: `bench` and `implementations` are imported from here."""

_SAFE_POOL = 4
"""Collectives of two devices in a pool of two or three threads often wait for each other for ever
(jax 0.10.2: 8 of 12 runs; in a pool of four: none of 10)."""

_RELEVANT = re.compile(
    r"XLA_|JAX_|NPROC$|PJRT_|OMP_|NCCL_|LIBTPU_|TPU_|CUDA_VISIBLE_DEVICES$|TF_GPU_|SLURM_NTASKS$"
)


def child_environment() -> dict[str, str]:
    """This process's environment, with the checkout importable."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), inherited] if inherited else [str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def worker_environment(platform: str, devices: int) -> dict[str, str]:
    """The environment of a worker that measures on a mesh of `devices` devices.

    On CPU a device is made to be about one core: with NPROC=1 XLA's thread pool has as many
    threads as there are devices, and it makes exactly the mesh's devices. Without this one device
    would use every core, and more devices could not be faster.

    Two or three devices get a pool of four threads, and `worker_cores` then keeps them to as many
    cores as there are devices.
    """
    environment = child_environment()
    if platform == "cpu":
        flags = environment.pop("XLA_FLAGS", "").split()
        kept = [f for f in flags if not f.startswith("--xla_force_host_platform_device_count")]
        if kept:
            environment["XLA_FLAGS"] = " ".join(kept)
        environment |= {
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_PLATFORMS": "cpu",
            "NPROC": str(_SAFE_POOL if _pool_is_too_small(devices) else 1),
        }
    else:
        # Arms are alive side by side, and one that does not fit must be told by its allocation.
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return environment


def worker_cores(platform: str, devices: int) -> set[int] | None:
    """Cores that a worker is kept to; None for all of this process's, or where none can be set."""
    if platform != "cpu" or not _pool_is_too_small(devices):
        return None
    if not hasattr(os, "sched_setaffinity"):
        return None
    return set(sorted(os.sched_getaffinity(0))[:devices])


def _pool_is_too_small(devices: int) -> bool:
    return 1 < devices < _SAFE_POOL


def relevant_variables() -> dict[str, str]:
    """Variables that change how XLA and its libraries run, for the manifest.

    Values with a path in them are left out of the record: they tell about a person's folders.
    """
    return {
        name: value if "/" not in value else "(a path)"
        for name, value in sorted(os.environ.items())
        if _RELEVANT.match(name)
    }
