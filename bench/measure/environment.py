"""The environment of child processes: import paths, devices, threads and cores."""

import os
import re
from collections.abc import Mapping

from bench.records.paths import CHECKOUT, ROOT

_THREADS_A_DEVICE = 2
"""A device that waits in a collective blocks its thread. With one thread per device, the last
device to arrive may find no thread for part of its work, which is a deadlock. That happened often
on jax 0.10 with two devices, and never with spare threads."""

_MEMORY_SHARES = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MEMORY_SHARE = "0.9"
"""Share of a GPU's memory that XLA may use. The rest is for CUDA, cuDNN and NCCL."""

_RELEVANT = re.compile(  # jax itself sets TPU_SKIP_MDS_QUERY where there is no TPU
    r"XLA_|JAX_|NPROC$|PJRT_|OMP_|NCCL_|LIBTPU_|TPU_(?!SKIP_MDS)|CUDA_|NVIDIA_TF32|TF_(GPU|XLA)_"
    r"|FLAX_|EQX_|SLURM_NTASKS$"
)
_PRIVATE = re.compile(r"ADDR|HOST|COMM_ID|IFNAME|TOKEN|SECRET|KEY|CERT")
"""Parts of the names of variables that may hold addresses or credentials."""


def child_environment() -> dict[str, str]:
    """Return this process's environment, with a checkout on PYTHONPATH.

    On GPUs, XLA allocates memory as needed, because processes share a device: the worker, those of
    variants, and short-lived ones before them. By default, it takes 75 % at once, and never more.
    """
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if not environment.keys() & set(_MEMORY_SHARES):  # XLA refuses both together
        environment[_MEMORY_SHARES[0]] = _MEMORY_SHARE
    if CHECKOUT:
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), inherited]))
    return environment


def worker_environment(platform: str, devices: int, processes: int = 1) -> dict[str, str]:
    """Return the environment of one of `processes` workers, each with `devices` devices.

    On CPU, a device gets about one core; otherwise a single device would use all cores, and more
    devices could not be faster. NPROC sets the size of XLA's thread pool. A mesh of one device gets
    one thread; devices that communicate get spare threads, and `worker_cores` restricts them to as
    many cores as there are devices.
    """
    environment = child_environment()
    if platform == "cpu":
        flags = environment.pop("XLA_FLAGS", "").split()
        others = [f for f in flags if not f.startswith("--xla_force_host_platform_device_count")]
        if others:
            environment["XLA_FLAGS"] = " ".join(others)
        environment |= {
            "JAX_NUM_CPU_DEVICES": str(devices),
            "JAX_PLATFORMS": "cpu",
            "NPROC": str(_THREADS_A_DEVICE * devices if devices * processes > 1 else 1),
        }
    return environment


def compiling_environment(platform: str, devices: int, *, here: bool) -> dict[str, str]:
    """Return the environment of a process that compiles programs without running them.

    For virtual devices, LLVM's optimizations are disabled: they would take four fifths of the time,
    and the program is read before LLVM generates machine code. The user's XLA_FLAGS are then
    ignored, so that results do not depend on them. The thread pool is as small as possible. Unless
    programs are for the devices `here`, XLA:CPU schedules for little memory, as on accelerators.
    """
    environment = worker_environment(platform, devices)
    if platform == "cpu":
        flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
        flags += "" if here else " --xla_cpu_enable_concurrency_optimized_scheduler=false"
        environment |= {"NPROC": "1", "XLA_FLAGS": flags}
    return environment


def worker_cores(platform: str, devices: int, rank: int = 0, processes: int = 1) -> set[int] | None:
    """Return the cores that a worker may use; None for all, or where affinity cannot be set.

    Processes on one host get separate cores as long as there are enough. Each has `devices`
    devices; `rank` is its index among the `processes` of its host.
    """
    if platform != "cpu" or devices * processes == 1 or not hasattr(os, "sched_setaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return {cores[number % len(cores)] for number in range(rank * devices, (rank + 1) * devices)}


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that change how XLA and its libraries run, sorted by name."""
    relevant = filter(_RELEVANT.match, sorted(environment))
    return {name: environment[name] for name in relevant if not _PRIVATE.search(name)}


def recorded_variables() -> dict[str, str]:
    """Return this process's relevant variables for the manifest; no others are ever recorded.

    Values that contain a path are masked, because they reveal a person's folders.
    """
    relevant = relevant_variables(os.environ).items()
    return {name: "(a path)" if "/" in value else value for name, value in relevant}
