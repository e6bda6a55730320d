"""An examination of this machine: what Lockstep can measure here, and what to install or set."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import psutil

from bench.analyse import peaks
from bench.measure.catalogue import TIMEOUT_S
from bench.measure.environment import child_environment, recorded_variables
from bench.measure.processes.guarded import ask
from bench.records import nvml
from bench.records.host import CPUS, describe_host, installed, shown
from bench.records.machine_rows import Board, Gpus, JaxDevices, Limits, Machine
from bench.records.messages import PACKAGES
from bench.records.numbers import bytes_, count
from bench.records.paths import module_command

SHOWN = (
    *("jax", "jaxlib", "flax", "optax", "nvidia-ml-py", "libtpu"),
    *(f"{name}-cu{major}" for major in (12, 13) for name in ("nvidia-nccl", "nvidia-cudnn")),
    *("jax-cuda12-plugin", "jax-cuda13-plugin"),
)
"""Packages whose versions matter on an accelerator; NVIDIA's newer packages have no suffix."""

LOWERED = 0.98
"""Share of its default below which a board's power limit counts as lowered."""

USUAL_MEMORY = 0.05
"""Share of a board's memory above which another process is taken to hold some of it."""


def examine(root: Path = Path("/")) -> Machine:
    """Examine this machine, reading its system's files below `root`."""
    machine = Machine(
        gpus=read_boards(),
        host=describe_host(),
        limits=read_limits(root),
        devices=read_devices(),
        versions=installed((*SHOWN, "nvidia-nccl", "nvidia-cudnn", *PACKAGES.values())),
        variables=recorded_variables(),
        measures={},
        advice=[],
    )
    machine["measures"] = measures(machine)
    machine["advice"] = list(advice(machine))
    return machine


def read_devices() -> JaxDevices:
    """Read the devices in a child process, so that this one holds no device memory."""
    command = module_command("bench.worker.answer.machine_devices")
    answer = ask(command, "", child_environment(), TIMEOUT_S)
    if answer.code == 0:
        return cast("JaxDevices", json.loads(answer.out))
    why = f"jax finds no device: its process {answer.blame}"
    return JaxDevices(platform="", kinds=[], memory_bytes=None, backend=why, missing={})


def read_limits(root: Path) -> Limits:
    """Read the system's limits on this process, from control groups (version 2) and drivers."""

    def text(path: str) -> str:
        return shown(root / path).strip()

    own = Path("sys/fs/cgroup", text("proc/self/cgroup").rpartition("::")[2].strip("/"))
    groups = (own, *own.parents[:-3])  # each of which may set a limit
    cores = [f"{text(f'{group}/cpu.max')} ".split(" ")[:2] for group in groups]
    sizes = [text(f"{group}/memory.max") for group in groups]
    profiling = text("proc/driver/nvidia/params").partition("RmProfilingAdminOnly:")[2].split()
    return Limits(
        governor=text(f"{CPUS.relative_to('/')}/cpu0/cpufreq/scaling_governor"),
        group_cores=min((int(n) / int(of) for n, of in cores if n.isdigit()), default=None),
        group_bytes=min((int(size) for size in sizes if size.isdigit()), default=None),
        available_bytes=psutil.virtual_memory().available,
        profiling_for_all=profiling[0] == "0" if profiling else None,
    )


def measures(machine: Machine) -> dict[str, str]:
    """Return, for each kind of figure, why it is missing or limited; empty if it is neither."""
    devices, versions = machine["devices"], machine["versions"]
    if not devices["kinds"]:
        return {"Times and verdicts": devices["backend"]}
    on_cpu, kind = devices["platform"] == "cpu", devices["kinds"][0]
    peak = "" if peaks.peak(kind, "bf16") else f"bench/analyse/peaks.toml has no peak of {kind}"
    several = "" if len(devices["kinds"]) > 1 else "there is one device"
    cores = count(machine["host"]["usable_cores"], "core")
    virtual = f"up to {cores}; more virtual devices show only dispatch and communication"
    memory = "" if devices["memory_bytes"] else "the compiler's plan and the process's memory only"
    return {
        "Times and verdicts": "",
        "Scaling over devices": virtual if on_cpu else several,
        "MFU": "no published peak for CPUs" if on_cpu else peak,
        "Memory of a device": memory,
        **devices["missing"],
        **{
            f"--{option}": "" if package in versions else f"needs the package {package}"
            for option, package in PACKAGES.items()
        },
    }


def advice(machine: Machine) -> Iterator[str]:
    """Yield advice on what to install or set, the most important first."""
    gpus, devices, limits = machine["gpus"], machine["devices"], machine["limits"]
    cuda = devices["platform"] == "gpu" and "rocm" not in devices["backend"].lower()
    if gpus["boards"] and devices["platform"] != "gpu":
        yield f"jax does not use the GPUs: {_why_no_gpu(machine)}"
    elif not devices["kinds"]:
        yield devices["backend"]
    if cuda and not gpus["boards"]:
        yield f"the GPUs could not be queried ({gpus['reason']}): LOCKSTEP_EXTRAS=cuda,energy"
    for number, board in enumerate(gpus["boards"]):
        for fault in _of_board(board):
            yield f"GPU {number}: {fault}"
    if cuda and (slow := devices["missing"]["Fused attention"]):
        yield f"attention will be several times slower than it could be: {slow}"
    if limits["profiling_for_all"] is False and devices["missing"].get("Traces"):
        yield (
            "only root may profile: load the driver with NVreg_RestrictProfilingToAdminUsers=0, "
            "or leave --profile out"
        )
    yield from _of_cores(machine)


def _why_no_gpu(machine: Machine) -> str:
    """Return the likeliest reason why jax uses no GPU, and what to do about it."""
    variables, newest = machine["variables"], machine["gpus"]["cuda"]
    if variables.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides them; unset it"
    if variables.get("JAX_PLATFORMS", "").split(",")[0] not in ("", "cuda", "gpu"):
        return f"JAX_PLATFORMS is {variables['JAX_PLATFORMS']}; unset it"
    found = [name for name in machine["versions"] if name.startswith("jax-cuda")]
    if not found:
        return "it is installed for CPUs only; install the extra `cuda` (LOCKSTEP_EXTRAS=cuda)"
    wanted = found[-1].removeprefix("jax-cuda").partition("-")[0]
    if int(wanted) > float(newest):
        return (
            f"{found[-1]} needs a driver for CUDA {wanted}, and this one supports CUDA up to "
            f"{newest}; update the driver or install jax[cuda{newest.partition('.')[0]}]"
        )
    return "`JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'` shows why"


def _of_board(board: Board) -> Iterator[str]:
    used = board["used_bytes"] or 0
    if board["processes"]:
        others = count(board["processes"], "other process", "other processes")
        yield f"it is used by {others}, so timings will be unreliable"
    elif used > USUAL_MEMORY * (board["memory_bytes"] or 0):
        yield f"{bytes_(used)} of its memory is in use, so timings will be unreliable"
    if board["throttled"]:
        yield f"its clock is held down now by {board['throttled'].replace('; ', ' and ')}"
    if board["divided"]:
        yield "MIG is enabled; published peaks and energy readings cover the whole board"
    if board["shared"] is False:
        yield (
            "it admits one process at a time, and variants with flags and other frameworks run in "
            "processes beside the worker; `nvidia-smi -c DEFAULT` admits several"
        )
    limit, default = board["limit_w"], board["default_limit_w"]
    if limit and default and limit < LOWERED * default:
        yield f"its power limit is {limit:.0f} W of {default:.0f} W; `nvidia-smi -pl` raises it"
    if board["persistent"] is False:
        yield "persistence mode is off, so that clocks fall between runs; `nvidia-smi -pm 1`"


def _of_cores(machine: Machine) -> Iterator[str]:
    host, limits = machine["host"], machine["limits"]
    cores, load = host["usable_cores"], host["load"]
    if load > cores / 2:
        yield f"the load is {load:.2g} on {count(cores, 'usable core')}: wait, or expect noise"
    if limits["group_cores"] and limits["group_cores"] < cores:
        yield (
            f"the control group may use {limits['group_cores']:.3g} of {count(cores, 'core')}, and "
            "is stopped when it has used them: pin the run to that many cores (taskset)"
        )
    if limits["governor"] not in ("", "performance"):
        yield (
            f"the CPU's governor is {limits['governor']}, which changes clocks with the load; "
            "`cpupower frequency-set -g performance`"
        )


def read_boards() -> Gpus:
    """Read all boards by NVML; if there are none, the result says why."""
    try:
        boards = nvml.boards()
        found: int = nvml.call("SystemGetCudaDriverVersion")
        return Gpus(
            driver=str(nvml.call("SystemGetDriverVersion")),
            cuda=f"{found // 1000}.{found % 1000 // 10}",
            boards=[_board(board) for board in boards],
            reason="" if boards else "NVML shows no board",
        )
    except nvml.UnknownError as error:
        return Gpus(driver="", cuda="", boards=[], reason=str(error))


def _board(handle: Any) -> Board:
    ask, watts = partial(nvml.ask, handle), partial(nvml.watts, handle)
    memory, mig, processes = ask("MemoryInfo"), ask("MigMode"), ask("ComputeRunningProcesses")
    persistent, mode = ask("PersistenceMode"), ask("ComputeMode")
    return Board(
        **nvml.state(handle),
        name=str(ask("Name")),
        memory_bytes=memory and int(memory.total),
        used_bytes=memory and int(memory.used),
        most_mhz=ask("MaxClockInfo", nvml.SM),
        limit_w=watts("EnforcedPowerLimit"),
        default_limit_w=watts("PowerManagementDefaultLimit"),
        persistent=None if persistent is None else bool(persistent),
        shared=None if mode is None else mode == nvml.SHARED,
        divided=None if mig is None else bool(mig[0]),
        processes=None if processes is None else len(processes),
    )
