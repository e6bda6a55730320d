"""The environment of child processes: where they import from and how many devices they see."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from bench.records.paths import ROOT

_THREADS_A_DEVICE = 2
"""A device that waits in a collective keeps its thread. With as many threads as devices, the last
one to arrive may find no thread for a part of its own work, and all wait for ever: seen often on
jax 0.10 with two devices, never with spare threads."""

_RELEVANT = re.compile(
    r"XLA_|JAX_|NPROC$|PJRT_|OMP_|NCCL_|LIBTPU_|TPU_|CUDA_VISIBLE_DEVICES$|TF_GPU_|SLURM_NTASKS$"
)
_PRIVATE = re.compile(r"ADDR|HOST|COMM_ID|IFNAME|TOKEN|SECRET|KEY|CERT")
"""Parts of names of variables that tell where a machine is, or how to get into it."""


def child_environment() -> dict[str, str]:
    """This process's environment, with the checkout importable."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), inherited] if inherited else [str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}


def worker_environment(platform: str, devices: int, processes: int = 1) -> dict[str, str]:
    """The environment of a worker with `devices` devices, one of `processes` that share a mesh.

    On CPU a device is made to be about one core: the worker makes exactly its devices, and
    NPROC sets XLA's thread pool. One device gets one thread. More devices get spare threads, and
    `worker_cores` keeps them to as many cores as there are devices. Without this one device would
    use every core, and more devices could not be faster. A device of one process among several
    communicates as well, and gets its spare thread.
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
            "NPROC": str(_THREADS_A_DEVICE * devices if devices * processes > 1 else 1),
        }
    else:
        # Arms are alive side by side, and one that does not fit must be told by its allocation.
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    return environment


def compiling_environment(devices: int) -> dict[str, str]:
    """The environment of a process that compiles for `devices` virtual devices, and runs nothing.

    LLVM, which makes machine code of the optimized program, is told not to try hard: it takes four
    fifths of the time otherwise, and what is read is of the program before. Flags that a person has
    set are not used, so that what is read does not depend on them. The pool of threads is as small
    as it can be, which is as many as there are devices.
    """
    return worker_environment("cpu", devices) | {
        "NPROC": "1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }


def worker_cores(platform: str, devices: int, rank: int = 0, processes: int = 1) -> set[int] | None:
    """Cores that a worker is kept to; None for all of this process's, or where none can be set.

    Processes of one host have cores of their own, as far as there are enough.

    Args:
      platform: `cpu` or an accelerator's.
      devices: of each process.
      rank: of the process among those of its host.
      processes: on this host.
    """
    if platform != "cpu" or devices * processes == 1 or not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return {cores[number % len(cores)] for number in range(rank * devices, (rank + 1) * devices)}


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables of an environment that change how XLA and its libraries run, sorted."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _RELEVANT.match(name) and not _PRIVATE.search(name)
    }


def recorded_variables() -> dict[str, str]:
    """This process's relevant variables, for the manifest.

    Others are never recorded, whatever they hold. Values with a path in them are left out of the
    record: they tell about a person's folders.
    """
    return {
        name: value if "/" not in value else "(a path)"
        for name, value in relevant_variables(os.environ).items()
    }
