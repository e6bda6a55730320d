"""The rows that a traced run stores: the parts of its steps and its operations."""

from typing import Literal, TypedDict

from bench.records.rows import BlockFields

Category = Literal["matmul", "elementwise", "layout", "collective", "control", "unknown"]
"""Kind of an operation: `layout` only rearranges data, `control` runs other operations, and
`unknown` belongs to a program that was not found."""


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
    """`forward`, `backward`, `recomputed`, `update` (by optax) or `other`."""
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
    cores: int | None
    """Number of cores that the processes might use, if the devices are CPUs; otherwise None."""
