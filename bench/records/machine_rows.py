"""The findings of `doctor` on a machine, in the form of its JSON."""

from typing import Any, TypedDict

from bench.records.row_parts import BoardState


class Board(BoardState):
    """A GPU and its current state by NVML; None for what NVML does not report."""

    name: str
    memory_bytes: int | None
    used_bytes: int | None
    most_mhz: int | None
    limit_w: float | None
    """Power that the board may draw; it was lowered if it is below `default_limit_w`."""
    default_limit_w: float | None
    persistent: bool | None
    """Whether the driver stays loaded, and keeps the clocks, while the board is unused."""
    shared: bool | None
    """Whether several processes may use the board at once."""
    divided: bool | None
    """Whether the board is in MIG mode."""
    processes: int | None


class Gpus(TypedDict):
    """All boards of the machine."""

    driver: str
    cuda: str
    """The newest CUDA that the driver supports, `13.0`."""
    boards: list[Board]
    reason: str
    """Why no board can be read; empty if some can."""


class JaxDevices(TypedDict):
    """The devices as a process with jax sees them."""

    platform: str
    """Empty if jax finds no device."""
    kinds: list[str]
    memory_bytes: int | None
    """Memory of a device that programs may use."""
    backend: str
    """Version of the runtime, or why jax finds no device."""
    missing: dict[str, str]
    """By kind of figure, why it cannot be measured; empty if it can."""


class Limits(TypedDict):
    """The system's limits on this process; None where there is no limit or it is unknown."""

    governor: str
    """Frequency governor of the first core; empty if unknown."""
    group_cores: float | None
    """CPU time that the control group may use, in cores."""
    group_bytes: int | None
    available_bytes: int
    profiling_for_all: bool | None
    """Whether NVIDIA's driver lets users other than root read performance counters."""


class Machine(TypedDict):
    """A machine, what Lockstep can measure there, and advice to improve it."""

    host: dict[str, Any]
    """The result of bench.records.host.describe_host."""
    limits: Limits
    devices: JaxDevices
    gpus: Gpus
    versions: dict[str, str]
    variables: dict[str, str]
    """Variables that change how XLA and its libraries run."""
    measures: dict[str, str]
    """By kind of figure, why it is missing or limited; empty if it is neither."""
    advice: list[str]
    """Advice on what to install or set, the most important first."""
