"""What `doctor` finds on a machine, as its JSON has it."""

from typing import Any, TypedDict


class Board(TypedDict):
    """A GPU as NVML shows it now; None stands for what it does not show."""

    name: str
    memory_bytes: int | None
    used_bytes: int | None
    clock_mhz: int | None
    """Of the multiprocessors, now."""
    most_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    limit_w: float | None
    """Power that the board may draw; below `default_limit_w` somebody has lowered it."""
    default_limit_w: float | None
    throttled: list[str]
    """Why its clock is lower than it could be: `power`, `heat`, `power brake`."""
    ecc: bool | None
    uncorrected: int | None
    """Memory errors that ECC could not correct, since the driver was loaded."""
    persistent: bool | None
    """Whether the driver stays loaded, and the clocks set, while nobody uses the board."""
    divided: bool | None
    """Whether it is in MIG mode."""
    links: int
    """NVLinks that are up."""
    pcie: str
    """Generation and lanes now, `5 x16`; empty if unknown."""
    processes: int | None
    """Processes that use it."""


class Gpus(TypedDict):
    """All boards of the machine."""

    driver: str
    cuda: str
    """The newest CUDA that the driver supports, `13.0`."""
    boards: list[Board]
    reason: str
    """Why there is nothing to read; empty if there is."""


class JaxDevices(TypedDict):
    """What a process with jax sees."""

    platform: str
    kinds: list[str]
    """Of every device."""
    memory_bytes: int | None
    """That programs of a device may use."""
    backend: str
    """The version of the runtime."""
    counted: list[str]
    """Kinds of boards or packages whose energy can be read."""
    no_energy: str
    """Why it cannot; empty if it can."""
    planes: list[str]
    """Planes of devices in a trace that was taken to see what the profiler may see."""
    no_trace: str
    """Why there is none; empty if there is."""
    attention: str
    """The kernel of fused attention; empty if there is none."""


class Limits(TypedDict):
    """What the system gives to this process; None where it sets no limit or does not tell."""

    governor: str
    """Of the first core; empty if unknown."""
    group_cores: float | None
    """CPU time that the control group may use, in cores."""
    group_bytes: int | None
    available_bytes: int
    profiling_for_all: bool | None
    """Whether NVIDIA's driver lets others than root read performance counters."""


class Machine(TypedDict):
    """A machine, what Lockstep can measure there, and what would make it better."""

    host: dict[str, Any]
    """As bench.records.host.describe_host describes it."""
    limits: Limits
    devices: JaxDevices
    gpus: Gpus
    versions: dict[str, str]
    variables: dict[str, str]
    """Variables that change how XLA and its libraries run."""
    measures: dict[str, str]
    """What can be measured; each is empty, or says why not or with what reservation."""
    advice: list[str]
    """What to install or to set, the most important first."""
