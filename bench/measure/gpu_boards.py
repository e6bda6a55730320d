"""NVIDIA's boards as NVML reports them: clocks, limits, errors, links and other processes."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from bench.records.clock_limits import held_down_by
from bench.records.machine_rows import Board, Gpus

_MOST_LINKS = 18
"""NVLinks of the newest kind of board; querying more is an error."""


def read_boards(nvml: Any = None) -> Gpus:
    """Read all boards; if there are none, the result gives the reason.

    Args:
      nvml: the module `pynvml` or a substitute; imported if not given.
    """
    try:
        nvml = nvml or import_module("pynvml")
    except ImportError:
        return _none("the package nvidia-ml-py is not installed (extra `energy`)")
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        found: int = nvml.nvmlSystemGetCudaDriverVersion()
        return Gpus(
            driver=str(nvml.nvmlSystemGetDriverVersion()),
            cuda=f"{found // 1000}.{found % 1000 // 10}",
            boards=[_board(nvml, handle) for handle in handles],
            reason="" if handles else "NVML shows no board",
        )
    except nvml.NVMLError as error:
        return _none(f"NVML: {error}")


def _none(reason: str) -> Gpus:
    return Gpus(driver="", cuda="", boards=[], reason=reason)


def _board(nvml: Any, handle: Any) -> Board:
    def ask(name: str, *arguments: Any) -> Any:
        """Query NVML; None if this board or this version of NVML does not support the query."""
        try:
            return getattr(nvml, name)(handle, *arguments)
        except (AttributeError, nvml.NVMLError):
            return None

    memory, ecc = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetEccMode")
    mig = ask("nvmlDeviceGetMigMode")
    generation, lanes = (
        ask(f"nvmlDeviceGetCurrPcieLink{what}") for what in ("Generation", "Width")
    )
    processes = ask("nvmlDeviceGetComputeRunningProcesses")
    persistent = ask("nvmlDeviceGetPersistenceMode")
    return Board(
        name=str(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory and int(memory.total),
        used_bytes=memory and int(memory.used),
        clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        most_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        power_w=_watts(ask("nvmlDeviceGetPowerUsage")),
        limit_w=_watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        default_limit_w=_watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        throttled=held_down_by(nvml, handle) or [],
        ecc=None if ecc is None else bool(ecc[0]),
        uncorrected=ask(
            "nvmlDeviceGetTotalEccErrors",
            getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),
            getattr(nvml, "NVML_VOLATILE_ECC", 0),
        )
        if ecc and ecc[0]
        else None,
        persistent=None if persistent is None else bool(persistent),
        divided=None if mig is None else bool(mig[0]),
        links=_links(ask),
        pcie=f"{generation} x{lanes}" if generation and lanes else "",
        processes=None if processes is None else len(processes),
    )


def _watts(milliwatts: float | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1e3


def _links(ask: Callable[..., Any]) -> int:
    up = 0
    for number in range(_MOST_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", number)
        if state is None:
            break
        up += bool(state)
    return up
