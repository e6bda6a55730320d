"""The rows that a traced run stores: the parts of its steps and its operations."""

from typing import Literal, TypedDict

from bench.records.rows import BlockFields

Category = Literal[
    "matmul", "elementwise", "layout", "callback", "collective", "control", "unknown"
]
"""Kind of an operation: `layout` only rearranges data, `callback` is on the host, `control` runs
others, and `unknown` belongs to a program that was not found, unless the name tells its kind."""


PARTS = ("total", "dispatch", "compute", "wait", "move", "idle", "overlap")
"""What a device's step is divided into: the keys of StepParts, without `_ns`."""


class StepParts(TypedDict):
    """One traced step's time on one device; all parts but `overlap_ns` add up to the total."""

    step: int
    device: int
    """Index in `mesh.devices.flat`."""
    total_ns: int
    dispatch_ns: int
    """Time in which the device was idle until the host launched its next program."""
    compute_ns: int
    wait_ns: int
    """Time in a collective before all of its group had arrived."""
    move_ns: int
    """Time in a collective after all of its group had arrived."""
    idle_ns: int
    overlap_ns: int
    """The part of `compute_ns` that ran during a collective."""


class OpTime(TypedDict):
    """An operation's share of a traced step, as means over devices and counted steps."""

    module: str
    op: str
    """Name of the HLO instruction."""
    opcode: str
    category: Category
    phase: str
    """`forward`, `backward`, `recomputed`, `update` (by optax, with copies for it) or `other`."""
    source: str
    """Innermost source line; empty if unknown."""
    shapes: list[str]
    """Dtype and shape of each result: `f32[256,1024]`."""
    transposes: bool
    """Whether it moves elements to another layout, alone or fused with computation."""
    count: float
    """Runs per step and device."""
    compute_ns: float
    """Computing time; for a control operation, the idle time while it ran."""
    wait_ns: float
    move_ns: float


class DrawnOps(TypedDict):
    """The operations of a drawn step, named as in OpTime, as columns of equal length."""

    op: list[str]
    category: list[Category | Literal["dispatch"]]
    """`dispatch` is the time before a launch, in which a device is idle."""
    source: list[str]
    shapes: list[str]


class DrawnRuns(TypedDict):
    """The runs of a drawn step's operations, as columns of equal length, by device and start."""

    device: list[int]
    """Index in `mesh.devices.flat`."""
    op: list[int]
    """Index in DrawnOps."""
    start: list[int]
    """Nanoseconds from the step's start."""
    ns: list[int]
    wait: list[int]
    """Nanoseconds before all of a collective's group had arrived; 0 for other operations."""
    meeting: list[int]
    """A number that the runs of a collective which wait for one another share; -1 for others."""


class DrawnStep(TypedDict):
    """One traced step on every device."""

    step: int
    """Its number in TraceRow.steps."""
    ns: int
    """Duration of the step, as the host saw it."""
    one_clock: bool
    """Whether devices can be compared; if not, each process counts from its own start."""
    left_out: int
    """Number of the shortest runs that are left out because there are too many."""
    ops: DrawnOps
    runs: DrawnRuns


class TraceRow(BlockFields):
    """The trace of one cell."""

    cell: str
    implementation: str
    profile: str
    """TensorBoard run name under profiles/."""
    host: str
    """TensorBoard's name of the traced process."""
    steps: list[StepParts]
    """Parts of every traced step on every device."""
    counted: list[int]
    """Steps over which `ops` are averaged: the middle half by length."""
    ops: list[OpTime]
    untraced_ns: list[int]
    """Times of as many steps without a profiler, also with a wait after each, run just before the
    traced ones of every pass."""
    drawn: str
    """A DrawnStep of median duration, in the form of bench.records.step_programs.compressed."""
